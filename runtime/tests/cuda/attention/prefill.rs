//! A random prefill step on the device, held against its reference.

use super::cache::{BLOCK_TOKENS, Cache};
use super::decode::compare;
use half::bf16;
use trail_runtime::cuda::launch::{attention_merge, attention_prefill, attention_wgmma};
use trail_runtime::cuda::params::{PrefillAttentionParams, WgmmaAttentionParams};
use trail_runtime::cuda::plan::attention::split::PrefillSplit;
use trail_runtime::cuda::plan::attention::{self, Heads, PrefillSegment};
use trail_runtime::cuda::plan::{Chip, hopper};
use trail_test_support::cuda::{Address, Bench, Chance};

/// Blocks of a launch by wgmma.
const BLOCKS: u32 = 3;

/// Which kernel computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Portable,
    Wgmma,
}

/// How the contexts of long tiles are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// A block has all partitions of a tile.
    Whole,
    /// A block has one.
    Cut,
}

/// Random chunks, heads and windows.
pub(crate) fn random_chunks(bench: &Bench, kernel: Kernel, share: Share) {
    let mut chance = Chance(15);
    for round in 0..10 {
        let heads = Heads {
            kv_heads: 1 + chance.below(2),
            group: [1, 4, 7, 3, 16, 32, 5][round % 7],
            head_dim: [64, 128][round % 2],
        };
        let window = (chance.below(3) == 0).then(|| 1 + chance.below(200));
        let chunk = |chance: &mut Chance| {
            let context =
                [0, chance.below(40), 16 * chance.below(30), chance.below(900)][chance.below(4)];
            (
                1 + chance.below(if heads.group > 8 { 24 } else { 90 }),
                (chance.below(6) > 0).then_some(context),
            )
        };
        let chunks: Vec<_> = (0..1 + chance.below(3)).map(|_| chunk(&mut chance)).collect();
        check(bench, &mut chance, heads, window, &chunks, (kernel, share));
    }
}

/// Lengths at the edges of blocks and tiles.
pub(crate) fn every_edge(bench: &Bench, kernel: Kernel, share: Share) {
    let mut chance = Chance(16);
    for (head_dim, window) in [(128, None), (64, None), (128, Some(40)), (64, Some(65))] {
        let heads = Heads { kv_heads: 1, group: 2, head_dim };
        for chunks in [
            [(64, Some(0)), (1, Some(0))],
            [(65, Some(63)), (16, Some(16))],
            [(130, Some(33)), (3, Some(1021))],
        ] {
            check(bench, &mut chance, heads, window, &chunks, (kernel, share));
        }
    }
    let heads = Heads { kv_heads: 2, group: 4, head_dim: 128 };
    check(bench, &mut chance, heads, None, &[(20, Some(4076))], (kernel, share));
}

/// Requests of one launch with different numbers of partitions: cut, they have the bits of whole
/// tiles.
pub(crate) fn partitions_of_several_requests(bench: &Bench, kernel: Kernel) {
    let mut chance = Chance(18);
    for (head_dim, group) in [(64, 4), (128, 7), (128, 1)] {
        let heads = Heads { kv_heads: 2, group, head_dim };
        let run = |first_row, rows, batch_idx, context| PrefillSegment {
            first_row,
            rows,
            batch_idx: Some(batch_idx),
            context,
        };
        let runs = [run(0, 40, 2, 1500), run(40, 3, 0, 1022), run(43, 30, 1, 20)];
        let cache = Cache::new(&mut chance, heads, None, &[1025, 50, 1540], &[0; 3]);
        let queries = chance.bf16s(73 * heads.row(), 2.0);
        let both = [Share::Whole, Share::Cut];
        let [whole, cut] = both.map(|by| launch(bench, &cache, &runs, &queries, (kernel, by)));
        assert!(bits(&whole) == bits(&cut), "{kernel:?} {heads:?}");
        for run in &runs {
            for row in run.first_row..run.first_row + run.rows {
                let at = row * heads.row()..(row + 1) * heads.row();
                let (batch_idx, position) =
                    (run.batch_idx.unwrap(), run.context + row - run.first_row);
                let what = format!("{kernel:?}, row {row} of {run:?}");
                let (query, out) = (&queries[at.clone()], &cut[at]);
                compare(&cache, batch_idx, position, query, out, &what);
            }
        }
    }
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Contexts of every residue of a tile of tokens.
pub(crate) fn every_residue(bench: &Bench, kernel: Kernel) {
    let mut chance = Chance(17);
    for head_dim in [64, 128] {
        let tile = if kernel == Kernel::Portable && head_dim == 128 { 32 } else { 64 };
        let heads = Heads { kv_heads: 1, group: 2, head_dim };
        let contexts: Vec<usize> = (0..tile).collect();
        for contexts in contexts.chunks(8) {
            let chunks: Vec<_> = contexts.iter().map(|&context| (65, Some(context))).collect();
            check(bench, &mut chance, heads, None, &chunks, (kernel, Share::Whole));
        }
    }
}

/// Runs chunks of `(rows, context)` (rows alone: a padding run) and holds them against the
/// reference.
pub(crate) fn check(
    bench: &Bench,
    chance: &mut Chance,
    heads: Heads,
    window: Option<usize>,
    chunks: &[(usize, Option<usize>)],
    (kernel, share): (Kernel, Share),
) {
    let order = chance.permutation(chunks.len());
    let mut lengths = vec![0; chunks.len()];
    let mut forgotten = vec![0; chunks.len()];
    let mut runs = Vec::new();
    // A decode row before the first run, and one between any two: no run may touch it.
    let mut row = 1;
    for (&(rows, context), &batch_idx) in chunks.iter().zip(&order) {
        if let Some(context) = context {
            lengths[batch_idx] = context + rows;
            forgotten[batch_idx] =
                window.map_or(0, |window| (context + 1).saturating_sub(window) / BLOCK_TOKENS);
        }
        runs.push(PrefillSegment {
            first_row: row,
            rows,
            batch_idx: context.map(|_| batch_idx),
            context: context.unwrap_or(0),
        });
        row += rows + 1;
    }
    let cache = Cache::new(chance, heads, window, &lengths, &forgotten);
    let queries = chance.bf16s(row * heads.row(), 2.0);
    let first = launch(bench, &cache, &runs, &queries, (kernel, share));
    let second = launch(bench, &cache, &runs, &queries, (kernel, share));
    assert!(first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits()), "two runs differ");
    for row in 0..row {
        let out = &first[row * heads.row()..][..heads.row()];
        let run = runs.iter().find(|run| (run.first_row..run.first_row + run.rows).contains(&row));
        let Some((run, batch_idx)) = run.and_then(|run| Some((run, run.batch_idx?))) else {
            assert!(
                out.iter().all(|value| value.to_bits() == 0xffff),
                "row {row} is in no run and was written"
            );
            continue;
        };
        let position = run.context + row - run.first_row;
        let query = &queries[row * heads.row()..][..heads.row()];
        compare(
            &cache,
            batch_idx,
            position,
            query,
            out,
            &format!("{kernel:?} {share:?}, row {row} of {run:?}, {heads:?}, window {window:?}"),
        );
    }
}

pub(crate) fn launch(
    bench: &Bench,
    cache: &Cache,
    runs: &[PrefillSegment],
    queries: &[bf16],
    (kernel, share): (Kernel, Share),
) -> Vec<bf16> {
    let mut tiles = Vec::new();
    attention::prefill_tiles(runs, cache.heads.group, &mut tiles);
    let split = match share {
        Share::Whole => PrefillSplit::WHOLE,
        Share::Cut => PrefillSplit::cut(cache.heads, runs, &tiles),
    };
    // A captured graph has room for more tiles than a step needs.
    tiles.push([-1, 0]);
    let encoded: Vec<[i32; 4]> = runs.iter().map(PrefillSegment::encode).collect();
    let rows = runs.iter().map(|run| run.rows).sum();
    let (heads, tile_count, chip) = (cache.heads, tiles.len(), bench.device.chip());
    let mut device = cache.upload(bench);
    let (mut q, mut out) = (bench.input(queries), bench.output(queries.len() * 2));
    let (mut runs, mut tiles) =
        (bench.input(encoded.as_flattened()), bench.input(tiles.as_flattened()));
    // Totals of whole tiles, of more than there are.
    let parts = split.parts(heads).max(tile_count * heads.kv_heads).max(BLOCKS as usize);
    let [mut partial_out, mut partial_sums] =
        PrefillSplit::workspace(parts, heads).map(|floats| bench.raw(floats * 4));
    let base = PrefillAttentionParams {
        kv: device.view(bench),
        q: q.at(bench),
        segments: runs.at(bench),
        tiles: tiles.at(bench),
        out: out.at(bench),
        partial_out: partial_out.at(bench),
        partial_sums: partial_sums.at(bench),
        ..PrefillAttentionParams::default()
    };
    let launched = match kernel {
        Kernel::Portable => {
            let plan = attention::prefill(heads, &split, tile_count, rows, rows);
            let launch = attention_prefill(&plan, heads, &split, base);
            // SAFETY: all buffers are as large as the runs say, and live until the read below has
            // waited.
            unsafe { bench.device.launch(&bench.stream, &launch) }
        }
        Kernel::Wgmma => {
            // Few blocks, so that each has several works.
            let few = Chip { multiprocessors: BLOCKS, ..*chip };
            let plan = hopper::attention::prefill(&few, heads, &split, tile_count, rows, rows);
            let (pool, tile_count) = (device.map(bench, heads), tile_count as i32);
            let params = WgmmaAttentionParams { pool, base, tile_count, reserved: [0; 3] };
            let launch = attention_wgmma(&plan.unwrap(), heads, &split, params);
            // SAFETY: as above.
            unsafe { bench.device.launch(&bench.stream, &launch) }
        }
    };
    launched.unwrap();
    if let Some(merge) = attention_merge(heads, &split, base) {
        // SAFETY: as above.
        unsafe { bench.device.launch(&bench.stream, &merge) }.unwrap();
    }
    bench.read(&out)
}
