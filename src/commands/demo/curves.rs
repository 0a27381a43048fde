//! Distributions of latency and time to first token under each policy, for the plot.

use trail_cli::drive::RequestOutcome;

use crate::plot::{Curve, Panel};

/// One policy's times.
pub struct Curves {
    /// The policy's name.
    pub policy: String,
    /// Latencies, seconds, any order.
    pub latency_s: Vec<f64>,
    /// Times to first token, seconds, any order.
    pub ttft_s: Vec<f64>,
}

impl Curves {
    /// The curves of a run.
    pub fn of(policy: &str, outcomes: &[RequestOutcome]) -> Curves {
        Curves {
            policy: policy.into(),
            latency_s: outcomes.iter().map(|o| o.latency_s).collect(),
            ttft_s: outcomes.iter().map(|o| o.ttft_s).collect(),
        }
    }
}

/// The panels of the plot, with all times multiplied by `factor`.
pub fn panels(curves: &[Curves], factor: f64) -> [Panel; 2] {
    let of = |times: fn(&Curves) -> &[f64]| {
        let scaled = |curves| times(curves).iter().map(|time| time * factor);
        curves.iter().map(|c| Curve::cumulative(&c.policy, scaled(c))).collect()
    };
    [
        Panel::cumulative(
            ["latency (arrival to last token), s", "requests answered, %"],
            of(|curves| &curves.latency_s),
        ),
        Panel::cumulative(["time to first token, s", "requests begun, %"], of(|c| &c.ttft_s)),
    ]
}
