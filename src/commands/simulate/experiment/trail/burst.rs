//! All requests at once.

use trail_runtime::engine::PolicyKind;

use super::super::curves::{LATENCY, TTFT, distributions};
use super::super::{Experiment, Finding, labelled, ratios};
use super::{paper, scenario, trial};
use crate::commands::simulate::scenario::Pace;
use crate::plot::Panel;

/// Requests of a burst.
const BURST: usize = 2000;

/// Figure 7: a burst.
pub const FIG7: Experiment = Experiment {
    name: "trail-fig7",
    source: "TRAIL, figure 7: all requests at once",
    claim: "c = 0.8 and c = 1 are alike, and both are below vLLM in mean latency and TTFT",
    conditions: "2,000 requests of Alpaca's lengths, Llama-3-8B on an A100-80GB (roofline), 256 \
                 sequences, 512 tokens a step, predictions at the release's error, TRAIL without \
                 options; the paper prints no values",
    grid: || {
        let burst = |policy| scenario("a100-80g:8b", policy, Pace::Burst, BURST);
        vec![
            trial("fcfs", 0.0, burst(PolicyKind::Fcfs)),
            trial("trail c=0.8", 0.0, burst(paper(0.8))),
            trial("trail c=1", 0.0, burst(paper(1.0))),
            trial("oracle", 0.0, burst(PolicyKind::SRPT)),
        ]
    },
    read: |measured| {
        let [fcfs, narrow, wide] =
            ["fcfs", "trail c=0.8", "trail c=1"].map(|label| labelled(measured, label));
        vec![
            Finding::new("mean latency, c=0.8 / c=1", "about 1", ratios(narrow, wide, LATENCY)),
            Finding::new("mean TTFT, c=0.8 / c=1", "about 1", ratios(narrow, wide, TTFT)),
            Finding::new("mean latency, FCFS / c=0.8", "above 1", ratios(fcfs, narrow, LATENCY)),
            Finding::new("mean TTFT, FCFS / c=0.8", "above 1", ratios(fcfs, narrow, TTFT)),
        ]
    },
    panels: |measured| {
        vec![
            Panel::cumulative(
                ["latency (arrival to last token), s", "requests answered, %"],
                distributions(measured, |outcome| outcome.latency_s),
            ),
            Panel::cumulative(
                ["time to first token, s", "requests begun, %"],
                distributions(measured, |outcome| outcome.ttft_s),
            ),
        ]
    },
};
