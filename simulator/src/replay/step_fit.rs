//! Step costs fitted to the durations of a log.

use trail_scheduler::{StepCost, StepWork};

/// Coefficients of the cost.
const TERMS: usize = 4;

/// Sums of products of the terms, and of each with the target.
type Gram = [[f64; TERMS + 1]; TERMS];

/// The costs with the least sum of squared relative errors of `steps`, each work and nanoseconds,
/// scaled to the time of all together: relative errors alone favour the short ones of steps that
/// vary. None is negative. Every subset of the terms beside the fixed cost is tried: steps that
/// only decode say nothing about prefill. Without a solution the mean duration is the fixed cost.
pub(super) fn fit(steps: &[(StepWork, f64)]) -> StepCost {
    let mut gram: Gram = [[0.0; TERMS + 1]; TERMS];
    for (work, ns) in steps {
        let StepWork { decode_rows, prefill_tokens, context_tokens, .. } = *work;
        let terms = [1, decode_rows, prefill_tokens, context_tokens].map(|term| term as f64 / ns);
        for (i, row) in gram.iter_mut().enumerate() {
            for (j, entry) in row.iter_mut().enumerate() {
                // The last column is the target: a relative duration of 1.
                *entry += terms[i] * terms.get(j).copied().unwrap_or(1.0);
            }
        }
    }
    let mean_ns = steps.iter().map(|(_, ns)| ns).sum::<f64>() / steps.len().max(1) as f64;
    let mut best = (f64::INFINITY, [mean_ns.clamp(1.0, 1e12), 0.0, 0.0, 0.0]);
    for subset in 0..1 << (TERMS - 1) {
        let used = [true, subset & 1 != 0, subset & 2 != 0, subset & 4 != 0];
        let Some(costs) = solve(&gram, used) else { continue };
        let sound = costs[0] >= 1.0 && costs.iter().all(|cost| (0.0..1e12).contains(cost));
        let error = error(&gram, &costs);
        if sound && error < best.0 {
            best = (error, costs);
        }
    }
    let cost = |[fixed, decode_row, prefill_token, context_token]: [f64; TERMS]| StepCost {
        fixed,
        decode_row,
        prefill_token,
        context_token,
        experts: None,
    };
    let fitted: f64 = steps.iter().map(|(work, _)| cost(best.1).ns(work) as f64).sum();
    let all: f64 = steps.iter().map(|(_, ns)| ns).sum();
    let scale = if fitted > 0.0 { all / fitted } else { 1.0 };
    cost(best.1.map(|of| of * scale))
}

/// The sum of squared relative errors, but for a constant.
fn error(gram: &Gram, costs: &[f64; TERMS]) -> f64 {
    let row = |i: usize| {
        let sum: f64 = (0..TERMS).map(|j| gram[i][j] * costs[j]).sum();
        costs[i] * (sum - 2.0 * gram[i][TERMS])
    };
    (0..TERMS).map(row).sum()
}

/// The normal equations over the `used` terms, by elimination; other costs are 0.
fn solve(gram: &Gram, used: [bool; TERMS]) -> Option<[f64; TERMS]> {
    // Terms differ by orders of magnitude: each is scaled by its diagonal.
    let scale = |i: usize| if i < TERMS { gram[i][i].sqrt() } else { 1.0 };
    let mut rows = *gram;
    for (i, row) in rows.iter_mut().enumerate() {
        for (j, entry) in row.iter_mut().enumerate() {
            let both = used[i] && used.get(j).copied().unwrap_or(true);
            *entry = match both {
                true => *entry / (scale(i) * scale(j)),
                false => f64::from(u8::from(i == j)),
            };
        }
    }
    // Symmetric and positive definite: no pivoting.
    for pivot in 0..TERMS {
        if rows[pivot][pivot].is_nan() || rows[pivot][pivot] < 1e-10 {
            return None;
        }
        let pivot_row = rows[pivot];
        for (_, row) in rows.iter_mut().enumerate().filter(|&(i, _)| i != pivot) {
            let factor = row[pivot] / pivot_row[pivot];
            row.iter_mut().zip(pivot_row).for_each(|(entry, of)| *entry -= factor * of);
        }
    }
    let cost = |i: usize| if used[i] { rows[i][TERMS] / rows[i][i] / scale(i) } else { 0.0 };
    Some([0, 1, 2, 3].map(cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(decode_rows: u64, prefill_tokens: u64, context_tokens: u64) -> StepWork {
        StepWork { decode_rows, prefill_tokens, context_tokens, kv_tokens: 0 }
    }

    #[test]
    fn exact_durations_give_their_costs_back() {
        let cost = StepCost {
            fixed: 5e5,
            decode_row: 2e4,
            prefill_token: 1e4,
            context_token: 10.0,
            experts: None,
        };
        let works = (0..200).map(|i| work(1 + i % 7, (i % 5) * (i % 11), 100 + 37 * (i % 13)));
        let steps: Vec<_> = works.map(|work| (work, cost.ns(&work) as f64)).collect();
        let got = fit(&steps);
        let pairs = [
            (got.fixed, cost.fixed),
            (got.decode_row, cost.decode_row),
            (got.prefill_token, cost.prefill_token),
            (got.context_token, cost.context_token),
        ];
        assert!(pairs.iter().all(|(got, want)| (got / want - 1.0).abs() < 1e-3), "{got:?}");
    }

    /// Of equal steps that take one or nine, as on a shared machine.
    #[test]
    fn costs_that_vary_have_their_mean() {
        let steps: Vec<_> = (0..100).map(|i| (work(1, 0, 0), [1e3, 9e3][i % 2])).collect();
        let all: f64 = steps.iter().map(|(work, _)| fit(&steps).ns(work) as f64).sum();
        assert!((all / 500e3 - 1.0).abs() < 0.01, "{all}");
    }

    #[test]
    fn too_few_steps_give_their_mean_and_no_cost_is_negative() {
        assert_eq!(fit(&[]).fixed, 1.0);
        let one = fit(&[(work(1, 0, 9), 700.0)]);
        assert!((one.ns(&work(1, 0, 9)) as f64 - 700.0).abs() < 2.0, "{one:?}");
        // Longer with fewer rows.
        let steps = [(work(1, 0, 0), 900.0), (work(2, 0, 0), 800.0), (work(3, 0, 0), 700.0)];
        let got = fit(&steps);
        assert!(got.fixed > 700.0 && got.decode_row == 0.0, "{got:?}");
    }
}
