//! Least squares over the coefficients of a step's cost.

use trail_platform::stats::median;
use trail_runtime::engine::{ExpertCost, StepCost, StepWork};
use trail_runtime::model::MixtureConfig;

use super::sweep::Observation;

/// Coefficients of the cost; the last is that of a mixture's experts.
const TERMS: usize = 5;

/// The coefficients that minimise the sum of squared relative errors; none is negative. `None` if
/// the observations do not determine a fixed cost of at least 1 ns.
pub fn fit(observations: &[Observation], mixture: Option<&MixtureConfig>) -> Option<StepCost> {
    // Where every row goes to all experts their cost is part of the fixed one.
    let mixture = mixture.filter(|of| of.experts_per_token < of.num_experts);
    let experts = mixture.map(|mixture| ExpertCost {
        num_experts: mixture.num_experts as u32,
        per_row: mixture.experts_per_token as u32,
        read: 0.0,
    });
    let mut used = [true; TERMS];
    used[TERMS - 1] = experts.is_some();
    // A term with a negative coefficient is left out, the worst one first.
    let coefficients = loop {
        let coefficients = solve(observations, experts.as_ref(), used)?;
        let negative = (0..TERMS).filter(|&term| coefficients[term] < 0.0);
        match negative.min_by(|&a, &b| coefficients[a].total_cmp(&coefficients[b])) {
            Some(term) => used[term] = false,
            None => break coefficients,
        }
    };
    let [fixed, decode_row, prefill_token, context_token, read] = coefficients;
    let cost = StepCost {
        fixed: fixed.round(),
        decode_row: decode_row.round(),
        prefill_token: prefill_token.round(),
        // Often below 100 ns, and multiplied by thousands.
        context_token: (context_token * 10.0).round() / 10.0,
        experts: experts.map(|experts| ExpertCost { read: read.round(), ..experts }),
    };
    (cost.fixed >= 1.0).then_some(cost)
}

/// Median of |fitted / measured - 1|.
pub fn residual(cost: &StepCost, observations: &[Observation]) -> f64 {
    let deviation = |(work, ns): &Observation| (cost.ns(work) as f64 / ns - 1.0).abs();
    median(&observations.iter().map(deviation).collect::<Vec<_>>())
}

fn terms(work: &StepWork, experts: Option<&ExpertCost>) -> [f64; TERMS] {
    let StepWork { decode_rows, prefill_tokens, context_tokens, .. } = *work;
    let read = experts.map_or(0.0, |experts| experts.experts_read(decode_rows + prefill_tokens));
    [1.0, decode_rows as f64, prefill_tokens as f64, context_tokens as f64, read]
}

/// Normal equations over the `used` terms, by Gaussian elimination; other coefficients are 0.
fn solve(
    observations: &[Observation],
    experts: Option<&ExpertCost>,
    used: [bool; TERMS],
) -> Option<[f64; TERMS]> {
    let mut rows = [[0.0; TERMS + 1]; TERMS];
    for (work, ns) in observations {
        let scaled = terms(work, experts).map(|term| term / ns);
        for (i, row) in rows.iter_mut().enumerate() {
            for (j, entry) in row.iter_mut().enumerate() {
                // The last column is the target: a relative time of 1.
                *entry += scaled[i] * scaled.get(j).copied().unwrap_or(1.0);
            }
        }
    }
    for term in (0..TERMS).filter(|&term| !used[term]) {
        rows.iter_mut().for_each(|row| row[term] = 0.0);
        rows[term] = [0.0; TERMS + 1];
        rows[term][term] = 1.0;
    }
    // Columns differ by orders of magnitude: each is scaled by its diagonal.
    let scale: Vec<f64> = (0..TERMS).map(|i| rows[i][i].sqrt()).collect();
    if scale.contains(&0.0) {
        return None;
    }
    for (i, row) in rows.iter_mut().enumerate() {
        for (j, entry) in row.iter_mut().enumerate() {
            *entry /= scale[i] * scale.get(j).copied().unwrap_or(1.0);
        }
    }
    for pivot in 0..TERMS {
        let best = (pivot..TERMS)
            .max_by(|&a, &b| rows[a][pivot].abs().total_cmp(&rows[b][pivot].abs()))?;
        rows.swap(pivot, best);
        if rows[pivot][pivot].abs() < 1e-9 {
            return None;
        }
        let pivot_row = rows[pivot];
        for (index, row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != pivot) {
            debug_assert_ne!(index, pivot);
            let factor = row[pivot] / pivot_row[pivot];
            row.iter_mut().zip(pivot_row).for_each(|(entry, of_pivot)| *entry -= factor * of_pivot);
        }
    }
    Some(std::array::from_fn(|i| rows[i][TERMS] / rows[i][i] / scale[i]))
}

#[cfg(test)]
mod tests {
    use trail_runtime::model::ModelConfig;

    use super::*;

    fn works() -> impl Iterator<Item = StepWork> {
        let sizes = [(1, 0, 8), (8, 0, 900), (0, 64, 2080), (4, 300, 46_000), (2, 16, 5_000)];
        sizes.into_iter().map(|(decode_rows, prefill_tokens, context_tokens)| StepWork {
            decode_rows,
            prefill_tokens,
            context_tokens,
            ..StepWork::default()
        })
    }

    #[test]
    fn exact_costs_are_recovered() {
        let cost = StepCost {
            fixed: 50e3,
            decode_row: 70e3,
            prefill_token: 40e3,
            context_token: 12.5,
            experts: None,
        };
        let observations: Vec<Observation> =
            works().map(|work| (work, cost.ns(&work) as f64)).collect();
        assert_eq!(fit(&observations, None), Some(cost));
        assert!(residual(&cost, &observations) < 1e-9);
    }

    #[test]
    fn no_coefficient_is_negative_and_too_few_observations_are_refused() {
        let falls = |work: &StepWork| 1e6 - 10.0 * work.context_tokens as f64;
        let observations: Vec<Observation> = works().map(|work| (work, falls(&work))).collect();
        let cost = fit(&observations, None).expect("a fixed cost");
        assert_eq!(cost.context_token, 0.0);
        assert!(cost.prefill_token >= 0.0 && cost.decode_row >= 0.0);
        assert_eq!(fit(&observations[..1], None), None);
    }

    #[test]
    fn experts_and_rows_have_costs_of_their_own() {
        let mixture = ModelConfig::named("qwen3-30b-a3b").expect("a shape").mixture;
        let experts = ExpertCost { num_experts: 128, per_row: 8, read: 3e3 };
        let experts = Some(experts);
        let (fixed, decode_row, prefill_token, context_token) = (50e3, 70e3, 40e3, 12.5);
        let cost = StepCost { fixed, decode_row, prefill_token, context_token, experts };
        let observations: Vec<Observation> =
            works().map(|work| (work, cost.ns(&work) as f64)).collect();
        let found = fit(&observations, mixture.as_ref()).expect("costs");
        let read = found.experts.expect("experts").read;
        assert!((read / 3e3 - 1.0).abs() < 1e-3 && (found.decode_row / 70e3 - 1.0).abs() < 1e-3);
        assert!(residual(&found, &observations) < 1e-4);
    }
}
