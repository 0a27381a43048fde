//! One order of summing: a row's attention has the same bits as a decode row and in a prompt's
//! chunk of any length, by every kernel, whichever blocks share its context.

use super::cache::Cache;
use super::decode::{self, Kernel, Step};
use super::prefill::{self, Share};
use half::bf16;
use trail_runtime::cuda::plan::attention::{self, Heads, PrefillSegment};
use trail_test_support::cuda::{Bench, Chance};

/// A request's tokens, its partitions, and positions in runs of rows.
struct Length {
    tokens: usize,
    partitions: usize,
    runs: &'static [(usize, usize)],
}

/// Positions at the edges of blocks, tiles and partitions.
const SHORT: Length = Length {
    tokens: 1100,
    partitions: 3,
    runs: &[(0, 3), (30, 36), (505, 40), (1000, 70), (1090, 10)],
};

/// The same where partitions become longer: 16 of 512 tokens, 12 of 2,048, and one of 8,192.
const LONG: Length =
    Length { tokens: 33_000, partitions: 29, runs: &[(8190, 4), (10_239, 2), (32_766, 4)] };

/// The chunks of a run: as a whole, in two, row by row.
fn chunks((from, rows): (usize, usize)) -> Vec<Vec<(usize, usize)>> {
    let half = rows / 2;
    vec![
        vec![(from, rows)],
        vec![(from, half), (from + half, rows - half)],
        (from..from + rows).map(|at| (at, 1)).collect(),
    ]
}

struct Scene<'a> {
    bench: &'a Bench,
    cache: Cache,
    length: &'a Length,
    /// Of every position.
    queries: Vec<bf16>,
}

impl Scene<'_> {
    fn row(&self) -> usize {
        self.cache.heads.row()
    }

    /// Bits of rows from `from` on, as decode rows with up to `splits` blocks each.
    fn decoded(&self, (from, rows): (usize, usize), splits: usize) -> Vec<u16> {
        let chip = self.bench.device.chip();
        let heads = self.cache.heads;
        let plan = attention::decode_with_splits(chip, rows, heads, self.length.tokens, splits);
        let position: Vec<i32> = (from..from + rows).map(|at| at as i32).collect();
        let step = Step {
            cache: &self.cache,
            plan: &plan,
            kernel: Kernel::Fast,
            queries: &self.queries[from * self.row()..][..rows * self.row()],
            batch_idx: &vec![0; rows],
            position: &position,
        };
        bits(&decode::launch(self.bench, &step, false))
    }

    /// The same as a chunk of a prompt.
    fn chunk(&self, (from, rows): (usize, usize), by: (prefill::Kernel, Share)) -> Vec<u16> {
        let run = PrefillSegment { first_row: 0, rows, batch_idx: Some(0), context: from };
        let queries = &self.queries[from * self.row()..][..rows * self.row()];
        bits(&prefill::launch(self.bench, &self.cache, &[run], queries, by))
    }
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn check(bench: &Bench, kernel: prefill::Kernel) {
    for (heads, window, length) in [
        (Heads { kv_heads: 2, group: 4, head_dim: 128 }, None, &SHORT),
        (Heads { kv_heads: 1, group: 7, head_dim: 64 }, None, &SHORT),
        (Heads { kv_heads: 1, group: 12, head_dim: 128 }, Some(600), &SHORT),
        (Heads { kv_heads: 1, group: 1, head_dim: 64 }, Some(77), &SHORT),
        (Heads { kv_heads: 1, group: 1, head_dim: 64 }, None, &LONG),
    ] {
        let mut chance = Chance(19);
        let cache = Cache::new(&mut chance, heads, window, &[length.tokens], &[0]);
        let queries = chance.bf16s(length.tokens * heads.row(), 2.0);
        let scene = Scene { bench, cache, length, queries };
        for &run in length.runs {
            let alone = scene.decoded(run, 1);
            let cut = scene.decoded(run, length.partitions);
            assert!(alone == cut, "{run:?} of {heads:?}: a block a partition");
            for share in [Share::Whole, Share::Cut] {
                // Row by row for few.
                let all = chunks(run).into_iter().take(if run.1 < 12 { 3 } else { 2 });
                for chunks in all {
                    let found: Vec<u16> =
                        chunks.iter().flat_map(|&at| scene.chunk(at, (kernel, share))).collect();
                    let differs = (0..alone.len()).find(|&at| alone[at] != found[at]);
                    let place = differs.map(|at| (run.0 + at / heads.row(), at % heads.row()));
                    assert_eq!(place, None, "{chunks:?} {kernel:?} {share:?} {heads:?} {window:?}");
                }
            }
        }
    }
}

#[test]
fn rows_have_their_bits_as_decode_rows_and_in_chunks() {
    check(&Bench::open(), prefill::Kernel::Portable);
}

#[test]
fn rows_have_their_bits_as_decode_rows_and_in_chunks_by_wgmma() {
    let Some(bench) = Bench::hopper() else { return };
    check(&bench, prefill::Kernel::Wgmma);
}
