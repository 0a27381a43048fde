//! Sums of tapped rows by block, and the mean over a prompt.

use super::{is_poison, reference};
use half::bf16;
use trail_runtime::cuda::launch::Launch;
use trail_runtime::cuda::params::TapMeanParams;
use trail_runtime::cuda::plan::step::{self, TapSegment};
use trail_test_support::cuda::{Address, Bench, Chance, Output};

/// Blocks of a request; the pool has as many for each of [`REQUESTS`].
const MAX_BLOCKS: usize = 20;
const REQUESTS: usize = 4;
/// Elements of a block before its sums, as keys and values would be.
const BEFORE: usize = 24;
/// Most draft tokens of a request in a step.
const DRAFTS: usize = 3;

/// A request: its place in the block table is its place in the list.
#[derive(Default)]
struct Request {
    prompt: usize,
    tokens: usize,
    /// Positions added so far.
    done: usize,
    /// Sums that its blocks must have, and the mean that must be staged.
    sums: Vec<Vec<f32>>,
    mean: Vec<bf16>,
}

impl Request {
    fn new(prompt: usize) -> Request {
        Request { prompt, tokens: prompt + DRAFTS + 20, ..Request::default() }
    }

    fn add(&mut self, row: &[f32]) {
        reference::add_row(&mut self.sums, self.done, row);
        self.done += 1;
        if self.done == self.prompt {
            self.mean = reference::tap_mean(&self.sums, self.prompt);
        }
    }
}

/// Device memory that launches work on.
struct World {
    width: usize,
    table: Vec<i32>,
    pool: Output,
    stage: Output,
    kept: Output,
    /// Last: it counts what the others have freed.
    bench: Bench,
}

impl World {
    fn new(width: usize) -> World {
        let bench = Bench::open();
        let blocks = REQUESTS * MAX_BLOCKS;
        World {
            width,
            table: (0..blocks).map(|at| (at * 7 % blocks) as i32).collect(),
            pool: bench.output(blocks * World::stride(width) * 2),
            stage: bench.output((REQUESTS + 1) * width * 2),
            kept: bench.output(REQUESTS * DRAFTS * width * 4),
            bench,
        }
    }

    /// Elements of a block.
    fn stride(width: usize) -> usize {
        BEFORE + 2 * width
    }

    /// Adds rows of `h`, or, where that is empty, of those kept before.
    fn launch(&mut self, h: &[f32], runs: &[TapSegment]) {
        let World { bench, width, table, pool, stage, kept } = self;
        let encoded: Vec<[i32; 8]> = runs.iter().map(TapSegment::encode).collect();
        let plan = step::tap_mean(runs.len(), runs.iter().map(|run| run.rows).sum(), *width);
        let mut segments = bench.input(encoded.as_flattened());
        let (mut rows, mut table) = (bench.input(h), bench.input(table));
        let kept = kept.at(bench);
        let params = TapMeanParams {
            h: if h.is_empty() { kept } else { rows.at(bench) },
            segments: segments.at(bench),
            block_table: table.at(bench),
            pool: pool.at(bench),
            kept,
            stage: stage.at(bench),
            block_stride: World::stride(*width) as i64,
            sums_offset: BEFORE as i64,
            max_blocks: MAX_BLOCKS as i32,
            d: *width as i32,
        };
        // SAFETY: all buffers have these extents; the inputs are freed in stream order.
        unsafe { bench.device.launch(&bench.stream, &Launch { plan, params }) }.unwrap();
    }

    /// One step: a chunk of each request, beside padding and decode rows, with draft tokens behind
    /// it; then a launch that adds those which turned out right.
    fn step(&mut self, requests: &mut [Request], chance: &mut Chance, least: usize) {
        let padding = TapSegment { rows: 1, stage_row: Some(REQUESTS), ..TapSegment::default() };
        let (mut runs, mut rows) = (vec![padding], 1);
        for (index, of) in requests.iter().enumerate() {
            let take = (least + chance.below(of.prompt)).min(of.tokens - of.done);
            let end = of.done + take;
            let kept = if end >= of.prompt { chance.below(DRAFTS + 1) } else { 0 };
            runs.push(TapSegment {
                first_row: rows,
                rows: take,
                batch_idx: (take > 0).then_some(index),
                first_position: of.done,
                prompt: of.prompt,
                stage_row: (of.done < of.prompt && end >= of.prompt).then_some(index),
                kept,
                kept_row: DRAFTS * index,
            });
            rows += take + kept + 1;
        }
        let width = self.width;
        let h: Vec<f32> = (0..rows * width).map(|_| chance.unit() * 3.0).collect();
        self.launch(&h, &runs);
        let mut right = Vec::new();
        for (run, of) in runs[1..].iter().zip(&mut *requests).filter(|(run, _)| run.rows > 0) {
            let row = |at: usize| &h[(run.first_row + at) * width..][..width];
            (0..run.rows).for_each(|at| of.add(row(at)));
            let count = chance.below(run.kept + 1).min(of.tokens - of.done);
            let (batch_idx, first_position) = (run.batch_idx, of.done);
            let first_row = run.kept_row;
            let later = TapSegment { first_row, rows: count, batch_idx, first_position, ..padding };
            right.push(TapSegment { stage_row: None, ..later });
            (0..count).for_each(|at| of.add(row(run.rows + at)));
        }
        self.launch(&[], &right);
    }
}

/// Prompts and outputs cut into chunks in any way, beside any others, with draft tokens right and
/// wrong, and one whose first blocks are another's, have the sums and means of one long loop.
#[test]
fn tap_mean_does_not_depend_on_the_chunks() {
    let mut chance = Chance(32);
    for (width, prompts) in [(64, [70, 1, 33]), (200, [45, 129, 64]), (8, [290, 2, 31])] {
        let mut world = World::new(width);
        let mut requests: Vec<Request> = prompts.into_iter().map(Request::new).collect();
        world.step(&mut requests, &mut chance, 32);
        // The last one begins with two blocks of the first.
        let shared = [world.table[0], world.table[1]];
        world.table[3 * MAX_BLOCKS..][..2].copy_from_slice(&shared);
        let sums = requests[0].sums[..2].to_vec();
        requests.push(Request { done: 32, sums, ..Request::new(47) });
        while requests.iter().any(|of| of.done < of.tokens) {
            world.step(&mut requests, &mut chance, 1);
        }
        let pool = world.bench.read::<u16>(&world.pool);
        let stage = world.bench.read::<u16>(&world.stage);
        for (index, of) in requests.iter().enumerate() {
            for (at, wanted) in of.sums.iter().enumerate() {
                let block = world.table[index * MAX_BLOCKS + at] as usize;
                let found = &pool[block * World::stride(width)..][..World::stride(width)];
                assert!(is_poison(&found[..BEFORE]), "keys and values were written");
                let pairs = found[BEFORE..].chunks(2);
                let word = |pair: &[u16]| u32::from(pair[0]) | u32::from(pair[1]) << 16;
                let found: Vec<u32> = pairs.map(word).collect();
                let wanted: Vec<u32> = wanted.iter().map(|sum| sum.to_bits()).collect();
                assert_eq!(found, wanted, "request {index}, block {at}");
            }
            let wanted: Vec<u16> = of.mean.iter().map(|value| value.to_bits()).collect();
            assert_eq!(stage[index * width..][..width], wanted, "prompt {index}");
        }
        assert!(is_poison(&stage[REQUESTS * width..]), "padding was written");
    }
}
