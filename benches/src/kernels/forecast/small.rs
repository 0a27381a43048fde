//! Forecasts of kernels whose time is not that of a loop of products: the sampler, the merge of
//! split attention, embedding, tap, and the head of a step. Their times are chains: loads that each
//! wait for the one before, barriers, additions in a fixed order. The chains were counted in the
//! sources, and are beside the kernel here; they do not come from the report.

use trail_runtime::cuda::plan::sampling::SUM_TOKENS;
use trail_runtime::cuda::plan::{Chip, LaunchPlan};

use super::{FENCE_S, Forecast, Rates};

/// Queries of a part of split attention.
pub(super) const PART_QUERIES: f64 = 128.0;
/// Seconds of a load from L2 with its address and first use, with little else in flight: 270
/// clocks by published microbenchmarks of both chips, and as much again for the rest. Judgement.
const L2_S: f64 = 0.3e-6;
/// Seconds of a read from pinned host memory.
const HOST_S: f64 = 1.5e-6;
/// Clocks of a barrier of a block with what it waits for: the last warp's arithmetic. Judgement.
const BARRIER_CLOCKS: f64 = 80.0;
/// Clocks of an f64 subtraction in a chain: 8, and 4 for loads and conversions of sixteen that come
/// before them.
const WALK_CLOCKS: f64 = 12.0;
/// Clocks of the f64 sum of a row's sums where no addition rounds, which is so unless one is some
/// 2^29 times smaller than all: a tree of five shuffles and sixteen additions, and the test. In
/// order it would be one addition after another, 8 clocks each.
const SUM_CLOCKS: f64 = 400.0 + 3.0 * BARRIER_CLOCKS;
/// Passes that narrow a nucleus before its band is below 2,048 tokens, the first one included: what
/// the benchmark's logits need. Logits that are nearly equal need up to 17.
const NARROWING: f64 = 4.0;
/// Clocks in which a histogram of 2,048 bins is cleared, filled and searched.
const HISTOGRAM_CLOCKS: f64 = 700.0;

/// Which kinds of sampling truncate; `None`: no op of the sampler.
pub(super) fn truncates(op: &str) -> Option<bool> {
    match op {
        "sample_greedy" => Some(false),
        "sample_top_p" => Some(true),
        _ => None,
    }
}

/// The three launches of a sampling.
pub(super) fn sampling(rates: &Rates, plans: &[LaunchPlan], truncates: bool) -> Forecast {
    let parts: Vec<_> = plans
        .iter()
        .map(|plan| match plan.kernel {
            // The row's parameters, then its logits; maxima by 256 tokens between the two.
            "sample_scan" => ("sample_scan", pass_s(rates, plan, 2.0, 1.0)),
            "sample_weigh" if truncates => ("sample_weigh", pass_s(rates, plan, 3.0, 2.0)),
            // Of its bytes a greedy row reads logits alone.
            "sample_weigh" => ("sample_weigh", pass_s(rates, plan, 3.0, 1.0)),
            _ => ("sample_choose", choose_s(rates, plan, truncates)),
        })
        .collect();
    let longest =
        parts.iter().copied().fold(("", 0.0), |max, of| if of.1 > max.1 { of } else { max });
    Forecast { seconds: parts.iter().map(|of| of.1).sum(), limited_by: longest.0 }
}

/// Seconds of a pass of all multiprocessors over `times` times the rows' logits, with a chain of
/// `loads` loads.
fn pass_s(rates: &Rates, plan: &LaunchPlan, loads: f64, times: f64) -> f64 {
    let row_bytes = extent(plan, "rows") * extent(plan, "vocab") * 4.0;
    let bytes = times * row_bytes;
    // The product has just written the logits: half of L2 is taken to hold them still.
    let in_l2 = row_bytes <= f64::from(rates.chip.l2_bytes) / 2.0;
    let all = rates.l2_bytes_per_clock * f64::from(rates.chip.multiprocessors) * rates.clock_hz;
    let moved = if in_l2 { bytes / all } else { bytes / rates.read_bytes_per_s };
    launch_s(rates, plan) + loads * L2_S + 2.0 * BARRIER_CLOCKS / rates.clock_hz + moved
}

/// Seconds of the choice: rows run side by side, as there are no more blocks than multiprocessors
/// for up to 64 rows.
fn choose_s(rates: &Rates, plan: &LaunchPlan, truncates: bool) -> f64 {
    let Rates { clock_hz, l2_bytes_per_clock, .. } = *rates;
    let vocab = extent(plan, "vocab");
    let blocks = (vocab / SUM_TOKENS as f64).ceil();
    let team = f64::from(plan.grid[0]);
    let clocks = |clocks: f64| clocks / clock_hz;
    let sum = clocks(SUM_CLOCKS);
    // Parameters and sums; the chosen token's logit; the step's number.
    let mut seconds = launch_s(rates, plan) + 4.0 * L2_S + clocks(8.0 * BARRIER_CLOCKS);
    // The raw probabilities.
    seconds += sum;
    if !truncates {
        return seconds + L2_S + clocks(2.0 * BARRIER_CLOCKS);
    }
    let barrier = if team > 1.0 { FENCE_S + 2.0 * L2_S } else { 0.0 };
    // A pass over a share of the row: two rounds of loads, then the exchange.
    let share = clocks(vocab * 4.0 / team / l2_bytes_per_clock);
    let pass = share + 2.0 * L2_S + barrier + L2_S + clocks(4.0 * BARRIER_CLOCKS);
    // The total; each narrowing and the truncation have a sum of their own; the gathering has an
    // atomic operation, and reads the list.
    seconds += sum + (NARROWING + 1.0) * (pass + sum) + pass + L2_S;
    // Two descents of three digits in shared memory.
    seconds += 6.0 * clocks(HISTOGRAM_CLOCKS + 5.0 * BARRIER_CLOCKS);
    // The draw walks the sums, then the weights of 256 tokens.
    seconds + clocks((blocks + SUM_TOKENS as f64) * WALK_CLOCKS) + L2_S
}

/// A small kernel of a step; `None` for others.
pub(super) fn launch(rates: &Rates, plan: &LaunchPlan) -> Option<Forecast> {
    let all = f64::from(rates.chip.multiprocessors);
    let read = plan.bytes as f64 / rates.read_bytes_per_s;
    let (limited_by, moved, loads) = match plan.kernel {
        // Batch index, token, the token's row.
        "embed" => ("latency and bytes", read, 3.0),
        // The segment, then rows, 32 at a time, each block with its columns.
        "tap_mean" => {
            let runs = extent(plan, "runs").max(1.0);
            let rounds = (extent(plan, "rows") / runs / 32.0).ceil();
            ("rounds of loads", read.max(rounds * rates.latency_s), 2.0)
        }
        "apply_diffs" => ("the link", 2.0 * HOST_S, 0.0),
        // Tile, segment, sums, and sums with outputs, from L2.
        kernel if kernel.starts_with("attention_merge") => {
            let a_clock = rates.l2_bytes_per_clock * all;
            ("L2", plan.bytes as f64 / a_clock / rates.clock_hz, 4.0)
        }
        _ => return None,
    };
    let seconds = launch_s(rates, plan) + loads * L2_S + moved;
    Some(Forecast { seconds, limited_by })
}

fn launch_s(rates: &Rates, plan: &LaunchPlan) -> f64 {
    if plan.overlaps { rates.overlapped_launch_s } else { rates.launch_s }
}

fn extent(plan: &LaunchPlan, name: &str) -> f64 {
    plan.shape.extent(name).unwrap_or(1) as f64
}

/// Multiprocessors that `blocks` blocks of prefill attention keep as busy as the busiest one. Of a
/// prompt without much before it blocks differ, the longest come first and the shortest fill the
/// end, so that all are busy; blocks that are alike come in rounds.
pub(super) fn busy_multiprocessors(chip: &Chip, plan: &LaunchPlan, blocks: f64) -> f64 {
    let all = f64::from(chip.multiprocessors);
    // The context is the mean over the chunk's rows.
    let alike = extent(plan, "context") > 1.5 * extent(plan, "rows");
    if alike { blocks / (blocks / all).ceil() } else { all.min(blocks) }
}
