//! The preemptable share c, with and without pressure on the KV cache.

use trail_scheduler::Preemption;

use super::super::curves::{LATENCY, TTFT, against_x, at};
use super::super::{Experiment, Finding, Trial, ratios};
use super::{paper, poisson, scenario, trial};
use crate::plot::Panel;

/// Requests of a run.
const REQUESTS: usize = 10_000;

/// Arrival rate as a multiple of the capacity with ample KV.
const LOAD: f64 = 1.1;

/// KV blocks under pressure.
const FEW_BLOCKS: u32 = 4096;

/// Values of c: the paper's, and 0.2, which it mentions.
const SHARES: [f64; 4] = [0.2, 0.5, 0.8, 1.0];

/// Memory of the curves: name, KV blocks if they are few, treatment of victims.
const MEMORY: [(&str, Option<u32>, Preemption); 3] = [
    ("ample KV", None, Preemption::Recompute),
    ("little KV, recompute", Some(FEW_BLOCKS), Preemption::Recompute),
    ("little KV, swap", Some(FEW_BLOCKS), Preemption::Swap),
];

fn trial_of(name: &str, blocks: Option<u32>, preemption: Preemption, c: f64) -> Trial {
    let mut scenario = scenario("a100-80g:8b", paper(c as f32), poisson(LOAD), REQUESTS);
    let scheduler = &mut scenario.simulation.scheduler;
    scheduler.num_blocks = blocks.unwrap_or(scheduler.num_blocks);
    // The host of the paper has 503 GiB: room for every victim.
    (scheduler.preemption, scheduler.host_blocks) = match preemption {
        Preemption::Recompute => (preemption, 0),
        other => (other, 8 * FEW_BLOCKS),
    };
    trial(name, c, scenario)
}

/// Figure 5: latency and TTFT by c.
pub const FIG5: Experiment = Experiment {
    name: "trail-fig5",
    source: "TRAIL, figure 5: latency and TTFT by c at a rate of 14",
    claim: "mean latency and TTFT are least at c = 0.8, closely followed by 0.5, highest at c = 1; \
            0.2 is above them",
    conditions: "10,000 requests of Alpaca's lengths at 1.1 times the capacity (the paper's rate of \
                 14 is a share of an engine's capacity that is not published), Llama-3-8B on an \
                 A100-80GB (roofline), predictions at the release's error, TRAIL without options; \
                 KV of the whole device (about 400,000 tokens), and 4,096 blocks (65,536 tokens), \
                 less than a full batch needs, with victims recomputed, and with victims swapped \
                 to the host",
    grid: || {
        let of = |(name, blocks, preemption)| SHARES.map(|c| trial_of(name, blocks, preemption, c));
        MEMORY.into_iter().flat_map(of).collect()
    },
    read: |measured| {
        let mut findings = Vec::new();
        for (name, ..) in MEMORY {
            for c in SHARES.into_iter().filter(|&c| c != 0.8) {
                let (here, best) = (at(measured, name, c), at(measured, name, 0.8));
                for (quantity, of) in [("latency", LATENCY), ("TTFT", TTFT)] {
                    let quantity = format!("{name}: mean {quantity}, c={c} / c=0.8");
                    findings.push(Finding::new(quantity, "above 1", ratios(here, best, of)));
                }
            }
        }
        findings
    },
    panels: |measured| {
        let panel = |caption, of| Panel::lines(["c", caption], against_x(measured, "", of));
        vec![panel("mean latency, s", LATENCY), panel("mean time to first token, s", TTFT)]
    },
};
