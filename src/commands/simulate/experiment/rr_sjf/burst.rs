//! Figures 3, 4 and 9: four policies in a burst.

use super::{
    Curve, E2EL, Experiment, Finding, Measured, Pace, Panel, TTFT, Time, Trial, labelled, policies,
    quantile_ratios, scenario,
};

const CONDITIONS: &str = "1,000 requests at once, true lengths (log-normal, median 850, 42 % at the \
    cap of 1,024: assumed), slices of 5 tokens, Llama-3.2-1B on an L4 (roofline), 256 sequences, 512 \
    tokens a step; the KV of a preempted request stays while it fits (461k tokens), where the \
    paper's vLLM recomputes it";

fn grid() -> Vec<Trial> {
    let trial = |(label, policy): (&str, _)| Trial {
        label: label.into(),
        x: 0.0,
        scenario: scenario(policy, Pace::Burst, 0.0),
    };
    policies().map(trial).into()
}

/// One time's distribution under each policy, of the first seed.
fn distributions(measured: &[Measured], time: Time) -> Vec<Curve> {
    let first = |m: &Measured| -> Vec<f64> {
        m.runs.iter().take(1).flat_map(|(_, run)| run.outcomes.iter().map(time)).collect()
    };
    measured.iter().map(|m| Curve::cumulative(&m.label, first(m))).collect()
}

/// A quantile of one policy's time over RR-SJF's, or the reverse.
fn ratio(measured: &[Measured], over: &str, under: &str, time: Time, p: f64) -> Vec<f64> {
    quantile_ratios(labelled(measured, over), labelled(measured, under), time, p)
}

/// Figure 3: TTFT.
pub const FIG3: Experiment = Experiment {
    name: "rr-sjf-fig3",
    source: "RR-SJF, figure 3: TTFT of four policies in a burst",
    claim: "RR-SJF's median is 9x below FCFS's and like SJF's; its maximum is 5x below SJF's and \
            FCFS's and 1.5x below RR's",
    conditions: CONDITIONS,
    grid,
    read: |measured| {
        let of = |over, p| ratio(measured, over, "RR-SJF", TTFT, p);
        vec![
            Finding::new("median TTFT, FCFS / RR-SJF", "9", of("FCFS", 0.5)),
            Finding::new("median TTFT, SJF / RR-SJF", "about 1", of("SJF", 0.5)),
            Finding::new("median TTFT, RR / RR-SJF", "above 1", of("RR", 0.5)),
            Finding::new("largest TTFT, FCFS / RR-SJF", "5", of("FCFS", 1.0)),
            Finding::new("largest TTFT, SJF / RR-SJF", "5", of("SJF", 1.0)),
            Finding::new("largest TTFT, RR / RR-SJF", "1.5", of("RR", 1.0)),
        ]
    },
    panels: |measured| {
        let axes = ["time to first token, s", "requests begun, %"];
        vec![Panel::cumulative(axes, distributions(measured, TTFT))]
    },
};

/// Figure 4: E2EL.
pub const FIG4: Experiment = Experiment {
    name: "rr-sjf-fig4",
    source: "RR-SJF, figure 4: E2EL of four policies in a burst",
    claim: "medians are similar; RR-SJF's 25th percentile is 9x below RR's; its maximum is the \
            largest",
    conditions: CONDITIONS,
    grid,
    read: |measured| {
        let over = |under, p| ratio(measured, "RR-SJF", under, E2EL, p);
        let quarter = ratio(measured, "RR", "RR-SJF", E2EL, 0.25);
        vec![
            Finding::new("25th percentile, RR / RR-SJF", "9", quarter),
            Finding::new("median, RR-SJF / FCFS", "about 1", over("FCFS", 0.5)),
            Finding::new("median, RR-SJF / SJF", "about 1", over("SJF", 0.5)),
            Finding::new("median, RR-SJF / RR", "about 1", over("RR", 0.5)),
            Finding::new("largest, RR-SJF / FCFS", "above 1", over("FCFS", 1.0)),
            Finding::new("largest, RR-SJF / SJF", "above 1", over("SJF", 1.0)),
            Finding::new("largest, RR-SJF / RR", "above 1", over("RR", 1.0)),
        ]
    },
    panels: |measured| {
        let axes = ["end-to-end latency, s", "requests answered, %"];
        vec![Panel::cumulative(axes, distributions(measured, E2EL))]
    },
};

/// Bins of figure 9's histogram.
const BINS: usize = 30;

/// Share of requests by E2EL, %, of the first seed; all on one scale up to `longest` seconds.
fn histogram(measured: &Measured, longest: f64) -> Vec<(f64, f64)> {
    let outcomes: Vec<f64> =
        measured.runs.iter().take(1).flat_map(|(_, run)| run.outcomes.iter().map(E2EL)).collect();
    let mut counts = [0u32; BINS];
    for latency_s in &outcomes {
        counts[((latency_s / longest * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    let width = longest / BINS as f64;
    let share = 100.0 / outcomes.len().max(1) as f64;
    let bins = counts.iter().enumerate();
    bins.map(|(bin, &n)| ((bin as f64 + 0.5) * width, share * f64::from(n))).collect()
}

/// Modes of a histogram: bins above both neighbours after a moving mean of three, and above the
/// mean height.
fn modes(points: &[(f64, f64)]) -> f64 {
    let height = |bin: usize| -> f64 {
        let near = &points[bin.saturating_sub(1)..(bin + 2).min(points.len())];
        near.iter().map(|point| point.1).sum::<f64>() / near.len() as f64
    };
    let heights: Vec<f64> = (0..points.len()).map(height).collect();
    let least = heights.iter().sum::<f64>() / heights.len().max(1) as f64;
    let is_mode = |&bin: &usize| {
        let before = bin.checked_sub(1).map_or(0.0, |bin| heights[bin]);
        let after = heights.get(bin + 1).copied().unwrap_or(0.0);
        heights[bin] > least && heights[bin] > before && heights[bin] >= after
    };
    (0..heights.len()).filter(is_mode).count() as f64
}

fn longest(measured: &[Measured]) -> f64 {
    let all = measured.iter().flat_map(|m| m.runs.iter().take(1));
    all.flat_map(|(_, run)| run.outcomes.iter().map(E2EL)).fold(1e-9, f64::max)
}

/// Figure 9: the shape of E2EL's distribution.
pub const FIG9: Experiment = Experiment {
    name: "rr-sjf-fig9",
    source: "RR-SJF, figure 9: distribution of E2EL of four policies in a burst",
    claim: "three humps whatever the policy: output lengths cluster around three values",
    conditions: CONDITIONS,
    grid,
    read: |measured| {
        let longest = longest(measured);
        let of = |m: &Measured| {
            let quantity = format!("{}: humps (first seed, {BINS} bins, mean of 3)", m.label);
            Finding::new(quantity, "3", vec![modes(&histogram(m, longest))])
        };
        measured.iter().map(of).collect()
    },
    panels: |measured| {
        let longest = longest(measured);
        let curve = |m: &Measured| {
            let points = histogram(m, longest);
            Curve { name: m.label.clone(), points }
        };
        let curves = measured.iter().map(curve).collect();
        vec![Panel::lines(["end-to-end latency, s", "requests in a bin, %"], curves)]
    },
};
