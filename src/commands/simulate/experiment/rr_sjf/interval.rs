//! Figure 2: tokens of a slice.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::RrSjf;
use trail_scheduler::{BLOCK_TOKENS, Preemption, SchedulerConfig};

use super::{Experiment, Finding, Measured, Pace, Scenario, Trial, mean, scenario};
use crate::commands::simulate::figures::Figures;
use crate::plot::{Curve, Panel};

/// Tokens of KV for one batch of 256 requests at their mean size.
const TIGHT_KV_TOKENS: u32 = 150_000;

/// Treatment of preempted requests.
const MEMORIES: [&str; 3] = ["KV stays (461k tokens)", "150k tokens, recompute", "150k, swap"];

/// A burst under RR-SJF with slices of `tokens`.
fn swept(memory: &str, tokens: u32) -> Scenario {
    let policy = PolicyKind::RrSjf(RrSjf { steps_before_preemption: tokens });
    let mut scenario = scenario(policy, Pace::Burst, 0.0);
    let model_s = scenario.simulation.scheduler;
    scenario.simulation.scheduler = match memory {
        name if name == MEMORIES[0] => model_s,
        name => SchedulerConfig {
            num_blocks: TIGHT_KV_TOKENS / BLOCK_TOKENS,
            host_blocks: if name == MEMORIES[2] { 1 << 16 } else { 0 },
            preemption: if name == MEMORIES[2] { Preemption::Swap } else { Preemption::Recompute },
            ..model_s
        },
    };
    scenario
}

/// Slices of the sweep: 5, 10, ..., 200.
fn slices() -> impl Iterator<Item = u32> {
    (1..=40).map(|step| 5 * step)
}

fn at<'a>(measured: &'a [Measured], memory: &str, tokens: u32) -> &'a Measured {
    let found = measured.iter().find(|m| m.label == memory && m.x == f64::from(tokens));
    found.expect("the grid has every slice")
}

/// A mean at slices of 200 over that at slices of 5, by seed.
fn growth(measured: &[Measured], memory: &str, of: fn(&Figures) -> f64) -> Vec<f64> {
    let [short, long] = [5, 200].map(|tokens| at(measured, memory, tokens).each(of));
    long.iter().zip(&short).map(|(long, short)| long / short).collect()
}

fn panel(measured: &[Measured], y: &str, of: fn(&Figures) -> f64) -> Panel {
    let curves = MEMORIES.map(|memory| {
        let points = slices().map(|n| (f64::from(n), mean(&at(measured, memory, n).each(of))));
        Curve { name: memory.into(), points: points.collect() }
    });
    Panel::lines(["tokens before preemption", y], curves.into())
}

/// Figure 2: the sweep.
pub const FIG2: Experiment = Experiment {
    name: "rr-sjf-fig2",
    source: "RR-SJF, figure 2: mean TTFT and E2EL over the tokens before preemption",
    claim: "both rise with the interval, 5 to 200 tokens; the authors cannot explain E2EL's rise",
    conditions: "1,000 requests at once, true lengths, Llama-3.2-1B on an L4 (roofline), 256 \
                 sequences, 512 tokens a step; the KV of a preempted request stays while it fits \
                 (461k tokens), and twice more with KV for one batch (150k tokens)",
    grid: || {
        let mut trials = Vec::new();
        for memory in MEMORIES {
            trials.extend(slices().map(|tokens| Trial {
                label: memory.into(),
                x: f64::from(tokens),
                scenario: swept(memory, tokens),
            }));
        }
        trials
    },
    read: |measured| {
        let mut findings = Vec::new();
        for memory in MEMORIES {
            let ttft = growth(measured, memory, |f| f.ttft_s.mean);
            let e2el = growth(measured, memory, |f| f.latency_s.mean);
            let name = |of| format!("mean {of}, 200 / 5 tokens: {memory}");
            findings.push(Finding::new(name("TTFT"), "above 1", ttft));
            findings.push(Finding::new(name("E2EL"), "above 1", e2el));
        }
        findings
    },
    panels: |measured| {
        vec![
            panel(measured, "mean TTFT, s", |f| f.ttft_s.mean),
            panel(measured, "mean E2EL, s", |f| f.latency_s.mean),
        ]
    },
};
