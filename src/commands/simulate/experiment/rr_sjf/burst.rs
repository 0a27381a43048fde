//! Figures 3, 4 and 9: four policies in a burst.

use super::{
    Curve, E2EL, Experiment, Finding, Measured, Pace, Panel, SimulationRun, TTFT, Time, Trial,
    WIDE, labelled, policies, quantile_ratios, scenario, scenario_of,
};

const CONDITIONS: &str = "1,000 requests at once, true lengths (log-normal, median 850, 42 % at the \
    cap of 1,024: assumed), slices of 5 tokens, Llama-3.2-1B on an L4 (roofline), 256 sequences, 512 \
    tokens a step; the KV of a preempted request stays while it fits (461k tokens), where the \
    paper's vLLM recomputes it; wide: half of the lengths are at the cap, a quarter below 100 tokens";

fn grid() -> Vec<Trial> {
    let trial = |(label, policy): (&str, _)| Trial {
        label: label.into(),
        x: 0.0,
        scenario: scenario(policy, Pace::Burst, 0.0),
    };
    policies().map(trial).into()
}

/// The same, and once more with more short requests.
fn both() -> Vec<Trial> {
    let wide = policies().map(|(label, policy)| Trial {
        label: format!("{label}{WIDE_SUFFIX}"),
        x: 0.0,
        scenario: scenario_of(WIDE, policy, Pace::Burst, 0.0),
    });
    grid().into_iter().chain(wide).collect()
}

/// Lengths of a label: as assumed, and with more short ones.
const SUFFIXES: [&str; 2] = ["", WIDE_SUFFIX];
const WIDE_SUFFIX: &str = ", wide";

/// One time's distribution under each policy, of the first seed.
fn distributions(measured: &[Measured], time: Time) -> Vec<Curve> {
    let first = |m: &Measured| -> Vec<f64> {
        m.runs.iter().take(1).flat_map(|(_, run)| run.outcomes.iter().map(time)).collect()
    };
    measured.iter().map(|m| Curve::cumulative(&m.label, first(m))).collect()
}

/// A quantile of the time under one policy over that under another, with each of the lengths.
fn ratio(
    measured: &[Measured],
    [over, under]: [&str; 2],
    (time, p): (Time, f64),
    paper: &str,
) -> Vec<Finding> {
    let finding = |suffix: &str| {
        let of = |label: &str| labelled(measured, &format!("{label}{suffix}"));
        let name = if p == 1.0 { "largest".into() } else { format!("p{:.0}", 100.0 * p) };
        let quantity = format!("{name}, {over} / {under}{suffix}");
        Finding::new(quantity, paper, quantile_ratios(of(over), of(under), time, p))
    };
    SUFFIXES.map(finding).into()
}

/// The panels of a time: the lengths as assumed, and those with more short ones.
fn panels(measured: &[Measured], name: &str, y: &str, time: Time) -> Vec<Panel> {
    let (assumed, wide) = measured.split_at(measured.len() / 2);
    let panel = |measured, of: &str| {
        Panel::cumulative([&format!("{name}{of}, s"), y], distributions(measured, time))
    };
    vec![panel(assumed, ""), panel(wide, WIDE_SUFFIX)]
}

/// Figure 3: TTFT.
pub const FIG3: Experiment = Experiment {
    name: "rr-sjf-fig3",
    source: "RR-SJF, figure 3: TTFT of four policies in a burst",
    claim: "RR-SJF's median is 9x below FCFS's and like SJF's; its maximum is 5x below SJF's and \
            FCFS's and 1.5x below RR's",
    conditions: CONDITIONS,
    grid: both,
    read: |measured| {
        let of = |over, p, paper| ratio(measured, [over, "RR-SJF"], (TTFT, p), paper);
        [
            of("FCFS", 0.5, "9"),
            of("SJF", 0.5, "about 1"),
            of("RR", 0.5, "above 1"),
            of("FCFS", 1.0, "5"),
            of("SJF", 1.0, "5"),
            of("RR", 1.0, "1.5"),
        ]
        .concat()
    },
    panels: |measured| panels(measured, "time to first token", "requests begun, %", TTFT),
};

/// Figure 4: E2EL.
pub const FIG4: Experiment = Experiment {
    name: "rr-sjf-fig4",
    source: "RR-SJF, figure 4: E2EL of four policies in a burst",
    claim: "medians are similar; RR-SJF's 25th percentile is 9x below RR's; its maximum is the \
            largest",
    conditions: CONDITIONS,
    grid: both,
    read: |measured| {
        let of = |under, p, paper| ratio(measured, ["RR-SJF", under], (E2EL, p), paper);
        [
            ratio(measured, ["RR", "RR-SJF"], (E2EL, 0.25), "9"),
            of("FCFS", 0.5, "about 1"),
            of("SJF", 0.5, "about 1"),
            of("RR", 0.5, "about 1"),
            of("FCFS", 1.0, "above 1"),
            of("SJF", 1.0, "above 1"),
            of("RR", 1.0, "above 1"),
        ]
        .concat()
    },
    panels: |measured| panels(measured, "end-to-end latency", "requests answered, %", E2EL),
};

/// Bins of figure 9's histogram.
const BINS: usize = 30;

/// Share of requests by E2EL, %; all on one scale up to `longest` seconds.
fn histogram(run: &SimulationRun, longest: f64) -> Vec<(f64, f64)> {
    let mut counts = [0u32; BINS];
    for outcome in &run.outcomes {
        counts[((E2EL(outcome) / longest * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    let width = longest / BINS as f64;
    let share = 100.0 / run.outcomes.len().max(1) as f64;
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
    let all = measured.iter().flat_map(|m| &m.runs);
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
            let quantity = format!("{}: humps ({BINS} bins, moving mean of 3)", m.label);
            let ours = m.runs.iter().map(|(_, run)| modes(&histogram(run, longest)));
            Finding::new(quantity, "3", ours.collect())
        };
        measured.iter().map(of).collect()
    },
    panels: |measured| {
        let longest = longest(measured);
        let curve = |m: &Measured| {
            let (_, first) = m.runs.first()?;
            Some(Curve { name: m.label.clone(), points: histogram(first, longest) })
        };
        let curves = measured.iter().filter_map(curve).collect();
        vec![Panel::lines(["end-to-end latency, s", "requests in a bin, %"], curves)]
    },
};
