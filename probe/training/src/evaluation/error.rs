//! Mean absolute errors, by predictor, age and true length.

use trail_probe::Bins;

use super::trace::Trace;

/// Steps of similar age: output tokens fed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Name in reports.
    pub name: &'static str,
    /// First step.
    pub first: u32,
    /// Last step.
    pub last: u32,
}

/// The classes of age.
pub const AGES: [Age; 5] = [
    Age { name: "prompt", first: 0, last: 0 },
    Age { name: "1-4", first: 1, last: 4 },
    Age { name: "5-16", first: 5, last: 16 },
    Age { name: "17-64", first: 17, last: 64 },
    Age { name: "later", first: 65, last: u32::MAX },
];

impl Age {
    /// True if `step` is in the class.
    pub fn has(&self, step: usize) -> bool {
        (self.first..=self.last).contains(&(step as u32))
    }
}

/// Mean absolute errors over some steps, tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mae {
    /// Steps.
    pub steps: usize,
    /// Of the probe's expectation at each step.
    pub raw: f64,
    /// Of the filter's.
    pub refined: f64,
    /// Of the best constant, counted down.
    pub constant: f64,
    /// Of the probe's prediction from the prompt, counted down.
    pub prompt_probe: f64,
    /// Of the prompt-only predictor, counted down; `None` if there is none.
    pub length_predictor: Option<f64>,
}

/// A prediction of `total` output tokens after the first `step`: at least one remains.
pub fn countdown(total: f32, step: usize) -> f32 {
    (total - step as f32).max(1.0)
}

/// Errors over the steps of `traces` that `keep` selects by trace and step. `constant`: total
/// tokens that the constant predicts, see [`best_constant`].
pub fn maes(traces: &[Trace], constant: f32, keep: impl Fn(&Trace, usize) -> bool) -> Mae {
    let mut sum = Mae { length_predictor: Some(0.0), ..Mae::default() };
    for trace in traces {
        for (step, remaining) in trace.steps().filter(|(step, _)| keep(trace, *step)) {
            let error = |predicted: f32| f64::from((predicted - remaining as f32).abs());
            sum.steps += 1;
            sum.raw += error(trace.raw[step]);
            sum.refined += error(trace.refined[step]);
            sum.constant += error(countdown(constant, step));
            sum.prompt_probe += error(countdown(trace.prompt_probe, step));
            let bag = trace.length_predictor.map(|total| error(countdown(total, step)));
            sum.length_predictor = sum.length_predictor.zip(bag).map(|(sum, error)| sum + error);
        }
    }
    let steps = sum.steps.max(1) as f64;
    Mae {
        raw: sum.raw / steps,
        refined: sum.refined / steps,
        constant: sum.constant / steps,
        prompt_probe: sum.prompt_probe / steps,
        length_predictor: sum.length_predictor.map(|sum| sum / steps),
        ..sum
    }
}

/// Total tokens whose countdown has the least error over all steps of `traces`: the best that a
/// constant can do, chosen on the very answers that it is judged by. In steps of 4 tokens.
pub fn best_constant(traces: &[Trace]) -> f32 {
    let longest = traces.iter().map(Trace::tokens).max().unwrap_or(0);
    let error = |constant: f32| -> f64 {
        let of = |trace: &Trace| -> f64 {
            let errors = trace.steps().map(|(step, remaining)| {
                f64::from((countdown(constant, step) - remaining as f32).abs())
            });
            errors.sum()
        };
        traces.iter().map(of).sum()
    };
    let constants = (0..=longest.next_multiple_of(4)).step_by(4).map(|tokens| tokens as f32);
    let errors = constants.map(|constant| (constant, error(constant)));
    errors.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0.0, |(constant, _)| constant)
}

/// Share of all steps whose likeliest bin is the true one.
pub fn bin_accuracy(traces: &[Trace], bins: &Bins) -> f64 {
    let (mut correct, mut steps) = (0, 0);
    for trace in traces {
        for (step, remaining) in trace.steps() {
            let p = &trace.probabilities[step];
            let bin = bins.bin_of(remaining);
            correct += usize::from(p.iter().all(|&other| other <= p[bin]));
            steps += 1;
        }
    }
    correct as f64 / f64::from(steps.max(1))
}

/// Number of steps by true bin and predicted bin `[bins][bins]` (TRAIL figure 4). `predicted`:
/// tokens that are predicted at a step.
pub fn heat_map(
    traces: &[Trace],
    bins: &Bins,
    predicted: impl Fn(&Trace, usize) -> f32,
) -> Vec<Vec<u64>> {
    let mut counts = vec![vec![0; bins.count()]; bins.count()];
    for trace in traces {
        for (step, remaining) in trace.steps() {
            let predicted = predicted(trace, step).max(0.0) as u32;
            counts[bins.bin_of(remaining)][bins.bin_of(predicted)] += 1;
        }
    }
    counts
}
