//! Ranking: are requests that live together put into the right order?

use trail_platform::Rng;
use trail_platform::kendall::kendall_tau_b;

use super::trace::Trace;

/// Requests that live together, and moments at which they are looked at.
const TOGETHER: usize = 32;
const MOMENTS: usize = 2000;

/// Tokens that remain: at most of a short answer, at least of a long one.
const SHORT: u32 = 64;
const LONG: u32 = 256;

/// Some requests at one moment: predicted and true remaining tokens.
type Moment = Vec<(f64, f64)>;

/// Mean of Kendall's tau-b between predicted and true remaining tokens, over moments with 32 random
/// requests, each at a random step: a longer answer is met more often, as in a server.
pub fn tau_b(traces: &[Trace], predicted: impl Fn(&Trace, usize) -> f32) -> f64 {
    let moments = moments(traces, predicted);
    moments.iter().map(|moment| kendall_tau_b(moment)).sum::<f64>() / moments.len().max(1) as f64
}

/// Share of the pairs of a request with at most 64 tokens to go and one with at least 256, at the
/// same moment, that are predicted to be in the other order.
pub fn short_behind_long(traces: &[Trace], predicted: impl Fn(&Trace, usize) -> f32) -> f64 {
    let (mut wrong, mut pairs) = (0_u64, 0_u64);
    for moment in moments(traces, predicted) {
        for short in moment.iter().filter(|(_, remaining)| *remaining <= f64::from(SHORT)) {
            for long in moment.iter().filter(|(_, remaining)| *remaining >= f64::from(LONG)) {
                wrong += u64::from(short.0 > long.0);
                pairs += 1;
            }
        }
    }
    wrong as f64 / pairs.max(1) as f64
}

/// The same moments for all predictors.
fn moments(traces: &[Trace], predicted: impl Fn(&Trace, usize) -> f32) -> Vec<Moment> {
    let ends: Vec<u64> = traces
        .iter()
        .scan(0, |end, trace| {
            *end += u64::from(trace.tokens());
            Some(*end)
        })
        .collect();
    let Some(&steps) = ends.last() else { return Vec::new() };
    let mut rng = Rng::new(1);
    let mut request = || {
        let at = rng.below(steps);
        let trace = ends.partition_point(|&end| end <= at);
        let step = (ends[trace] - at - 1) as usize;
        let remaining = traces[trace].tokens() - step as u32;
        (f64::from(predicted(&traces[trace], step)), f64::from(remaining))
    };
    (0..MOMENTS).map(|_| (0..TOGETHER).map(|_| request()).collect()).collect()
}
