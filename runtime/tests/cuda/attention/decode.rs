//! A random decode step on the device, held against its reference.

use super::cache::{BLOCK_TOKENS, Cache};
use super::reference;
use half::bf16;
use trail_runtime::cuda::launch::{Launch, attention_decode};
use trail_runtime::cuda::params::DecodeAttentionParams;
use trail_runtime::cuda::plan::attention::{self, DecodePlan, Heads};
use trail_runtime::cuda::plan::bench::ladder;
use trail_test_support::cuda::{Address, Bench, Chance};

/// The case of a test.
pub(crate) struct Case {
    pub(crate) heads: Heads,
    pub(crate) window: Option<usize>,
    /// Length of each row's context, the row's own token included; `None`: a padding row.
    pub(crate) rows: Vec<Option<usize>>,
    pub(crate) splits: usize,
}

/// Which kernel computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Fast,
    Rung(usize),
}

impl Case {
    pub(crate) fn random(chance: &mut Chance, longest: usize) -> Case {
        let max_group = if chance.below(3) == 0 { 32 } else { 8 };
        let heads = Heads {
            kv_heads: 1 + chance.below(3),
            group: 1 + chance.below(max_group),
            head_dim: [64, 128][chance.below(2)],
        };
        let length = |chance: &mut Chance| match chance.below(6) {
            0 => None,
            1 => Some(1 + chance.below(33)),
            2 => Some(16 * (1 + chance.below(20))),
            3 => Some(1 + chance.below(longest)),
            _ => Some(1 + chance.below(600)),
        };
        let rows = (0..1 + chance.below(5)).map(|_| length(chance)).collect();
        let window = (chance.below(3) == 0).then(|| 1 + chance.below(700));
        Case { heads, window, rows, splits: [1, 2, 3, 7, 16][chance.below(5)] }
    }
}

/// Runs the case twice and holds both answers against the reference and each other.
pub(crate) fn check(bench: &Bench, chance: &mut Chance, case: &Case, kernel: Kernel) {
    let Case { heads, window, ref rows, splits } = *case;
    // Row i is batch_idx `order[i]`: rows and batch slots are different things.
    let order = chance.permutation(rows.len());
    let mut lengths = vec![0; rows.len()];
    for (row, length) in rows.iter().enumerate() {
        lengths[order[row]] = length.unwrap_or(0);
    }
    let forgotten: Vec<usize> = lengths
        .iter()
        .map(|length| window.map_or(0, |window| length.saturating_sub(window) / BLOCK_TOKENS))
        .collect();
    let cache = Cache::new(chance, heads, window, &lengths, &forgotten);
    let queries = chance.bf16s(rows.len() * heads.row(), 2.0);
    let batch_idx: Vec<i32> = rows
        .iter()
        .zip(&order)
        .map(|(length, &batch_idx)| length.map_or(-1, |_| batch_idx as i32))
        .collect();
    let position: Vec<i32> =
        rows.iter().map(|length| length.map_or(0x0fff_ffff, |length| length as i32 - 1)).collect();
    let context = lengths.iter().max().copied().unwrap_or(1).max(1);
    let chip = bench.device.chip();
    let plan = attention::decode_with_splits(chip, rows.len(), heads, context, splits);
    let step = Step {
        cache: &cache,
        plan: &plan,
        kernel,
        queries: &queries,
        batch_idx: &batch_idx,
        position: &position,
    };
    let runs: Vec<Vec<bf16>> = [true, false].map(|guarded| launch(bench, &step, guarded)).to_vec();
    let same = |a: &bf16, b: &bf16| a.to_bits() == b.to_bits();
    assert!(
        runs[0].iter().zip(&runs[1]).all(|(a, b)| same(a, b)),
        "two runs differ: {}",
        plan.launch
    );
    for (row, length) in rows.iter().enumerate() {
        let out = &runs[0][row * heads.row()..][..heads.row()];
        match length {
            None => assert!(
                out.iter().all(|value| value.to_bits() == 0xffff),
                "a padding row was written"
            ),
            Some(length) => {
                let query = &queries[row * heads.row()..][..heads.row()];
                compare(
                    &cache,
                    order[row],
                    length - 1,
                    query,
                    out,
                    &format!("row {row} of {}", plan.launch),
                );
            }
        }
    }
}

/// Holds one row's answer against the reference.
pub(crate) fn compare(
    cache: &Cache,
    batch_idx: usize,
    position: usize,
    queries: &[bf16],
    out: &[bf16],
    what: &str,
) {
    let Heads { kv_heads, group, head_dim } = cache.heads;
    for kv_head in 0..kv_heads {
        let keys = cache.attended(batch_idx, position, 0, kv_head);
        let values = cache.attended(batch_idx, position, 1, kv_head);
        for head in kv_head * group..(kv_head + 1) * group {
            let at = head * head_dim..(head + 1) * head_dim;
            let answer = reference::attention(&queries[at.clone()], &keys, &values);
            for (place, got) in out[at].iter().enumerate() {
                let (got, wanted) = (f64::from(got.to_f32()), answer.out[place]);
                let tolerance = answer.tolerance(place);
                assert!(
                    (got - wanted).abs() <= tolerance,
                    "{what}: position {position} head {head} place {place}: {got}, not {wanted} within {tolerance:e}"
                );
            }
        }
    }
}

/// The inputs of a launch.
pub(crate) struct Step<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) plan: &'a DecodePlan,
    pub(crate) kernel: Kernel,
    pub(crate) queries: &'a [bf16],
    pub(crate) batch_idx: &'a [i32],
    pub(crate) position: &'a [i32],
}

pub(crate) fn launch(bench: &Bench, step: &Step, guarded: bool) -> Vec<bf16> {
    let Step { cache, plan, kernel, queries, batch_idx, position } = *step;
    let mut device = cache.upload(bench);
    let (mut q, mut batch_idx, mut position) =
        (bench.input(queries), bench.input(batch_idx), bench.input(position));
    let mut out = bench.output(queries.len() * 2);
    // Once guarded and poisoned, once as unwritten memory: a stray write is found here, a
    // stray read there.
    let (mut guarded_out, mut guarded_sums) =
        (bench.output(plan.partial_out * 4), bench.output(plan.partial_sums * 4));
    let (mut raw_out, mut raw_sums) =
        (bench.raw(plan.partial_out * 4), bench.raw(plan.partial_sums * 4));
    let (partial_out, partial_sums) = if guarded {
        (guarded_out.at(bench), guarded_sums.at(bench))
    } else {
        (raw_out.at(bench), raw_sums.at(bench))
    };
    let mut tile_counters = bench.changed(&vec![0u32; plan.tile_counters]);
    let params = DecodeAttentionParams {
        kv: device.view(bench),
        q: q.at(bench),
        position: position.at(bench),
        batch_idx: batch_idx.at(bench),
        out: out.at(bench),
        partial_out,
        partial_sums,
        tile_counters: tile_counters.at(bench),
        ..DecodeAttentionParams::default()
    };
    let launch = attention_decode(plan, params);
    let launch = match kernel {
        Kernel::Fast => launch,
        Kernel::Rung(number) => {
            let [.., z] = plan.launch.grid;
            Launch { plan: ladder::attention(number, z as usize, plan.heads, 1), ..launch }
        }
    };
    // SAFETY: all buffers are as large as the plan says, and live until the reads below have
    // waited.
    unsafe { bench.device.launch(&bench.stream, &launch) }.unwrap();
    assert!(
        bench.read::<u32>(&tile_counters).iter().all(|&count| count == 0),
        "a counter was not reset"
    );
    bench.read::<f32>(&guarded_out);
    bench.read::<f32>(&guarded_sums);
    bench.read(&out)
}
