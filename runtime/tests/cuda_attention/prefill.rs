//! A random prefill step on the device, held against its reference.

use crate::cache::{BLOCK_TOKENS, Cache};
use crate::cuda::{Address, Bench, Chance};
use crate::decode::compare;
use half::bf16;
use trail_runtime::cuda::launch::{PrefillRows, attention_prefill};
use trail_runtime::cuda::plan::attention::{self, Heads, PrefillSegment};

/// Runs chunks of `(rows, context)` (rows alone: a padding run) and holds them against the
/// reference.
pub(crate) fn check(
    bench: &Bench,
    chance: &mut Chance,
    heads: Heads,
    window: Option<usize>,
    chunks: &[(usize, Option<usize>)],
) {
    let order = chance.permutation(chunks.len());
    let mut lengths = vec![0; chunks.len()];
    let mut forgotten = vec![0; chunks.len()];
    let mut runs = Vec::new();
    // A decode row before the first run, and one between any two: no run may touch it.
    let mut row = 1;
    for (&(rows, context), &slot) in chunks.iter().zip(&order) {
        if let Some(context) = context {
            lengths[slot] = context + rows;
            forgotten[slot] =
                window.map_or(0, |window| (context + 1).saturating_sub(window) / BLOCK_TOKENS);
        }
        runs.push(PrefillSegment {
            first_row: row,
            rows,
            batch_idx: context.map(|_| slot),
            context: context.unwrap_or(0),
        });
        row += rows + 1;
    }
    let cache = Cache::new(chance, heads, window, &lengths, &forgotten);
    let queries = chance.bf16s(row * heads.row(), 2.0);
    let first = launch(bench, &cache, &runs, &queries);
    let second = launch(bench, &cache, &runs, &queries);
    assert!(first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits()), "two runs differ");
    for row in 0..row {
        let out = &first[row * heads.row()..][..heads.row()];
        let run = runs.iter().find(|run| (run.first_row..run.first_row + run.rows).contains(&row));
        let Some((run, slot)) = run.and_then(|run| Some((run, run.batch_idx?))) else {
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
            slot,
            position,
            query,
            out,
            &format!("row {row} of {run:?}, {heads:?}, window {window:?}"),
        );
    }
}

fn launch(bench: &Bench, cache: &Cache, runs: &[PrefillSegment], queries: &[bf16]) -> Vec<bf16> {
    let mut tiles = Vec::new();
    attention::prefill_tiles(runs, cache.heads.group, &mut tiles);
    // A captured graph has room for more tiles than a step needs.
    tiles.push([-1, 0]);
    let encoded: Vec<[i32; 4]> = runs.iter().map(PrefillSegment::encode).collect();
    let rows = runs.iter().map(|run| run.rows).sum();
    let plan = attention::prefill(cache.heads, tiles.len(), rows, rows);
    let mut device = cache.upload(bench);
    let (mut q, mut out) = (bench.input(queries), bench.output(queries.len() * 2));
    let (mut runs, mut tiles) =
        (bench.input(encoded.as_flattened()), bench.input(tiles.as_flattened()));
    let view = device.view(bench);
    let buffers = PrefillRows {
        q: q.at(bench),
        segments: runs.at(bench),
        tiles: tiles.at(bench),
        out: out.at(bench),
    };
    let launch = attention_prefill(&plan, cache.heads, &view, &buffers);
    // SAFETY: all buffers are as large as the runs say, and live until the read below has waited.
    unsafe { bench.device.launch(&bench.stream, &launch) }.unwrap();
    bench.read(&out)
}
