//! Metrics of a proxy, under the names that an engine's have.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntCounter, Opts, Registry};

use super::lengths::Lengths;
use super::queue::Queue;

/// Gauges that are read at each scrape.
struct Gauges {
    queue: Arc<Queue>,
    lengths: Arc<Lengths>,
    gauges: [Gauge; 7],
}

/// Names and help of the gauges.
const GAUGES: [(&str, &str); 7] = [
    ("trail_requests_running", "Requests that have a slot."),
    ("trail_requests_waiting", "Requests that wait for a slot."),
    ("trail:predicted_tokens_outstanding", "Predicted output tokens to come."),
    (
        "trail_predictions_trusted",
        "0 while requests are ranked by arrival, as predictions are not there or order no better.",
    ),
    ("trail_prediction_window_mae_tokens", "Mean absolute error of the last predictions."),
    (
        "trail_prediction_window_tau",
        "Kendall's tau-b of predicted and true lengths, of the last answers.",
    ),
    ("trail_upstream_up", "0 while the server behind the proxy does not answer."),
];

/// Registers and returns the counters of requests sent again, and of tokens generated.
pub(super) fn counters(registry: &Registry) -> prometheus::Result<[IntCounter; 2]> {
    let counter = |name: &str, help: &str| {
        let counter = IntCounter::new(name, help)?;
        registry.register(Box::new(counter.clone()))?;
        Ok::<_, prometheus::Error>(counter)
    };
    Ok([
        counter(
            "trail_upstream_retries_total",
            "Times a request was sent again, as the server behind the proxy had not answered.",
        )?,
        counter("trail_generated_tokens_total", "Tokens generated.")?,
    ])
}

/// Registers the gauges.
pub(super) fn register(
    registry: &Registry,
    queue: &Arc<Queue>,
    lengths: &Arc<Lengths>,
) -> prometheus::Result<()> {
    let mut gauges = Vec::with_capacity(GAUGES.len());
    for (name, help) in GAUGES {
        gauges.push(Gauge::with_opts(Opts::new(name, help))?);
    }
    let gauges = gauges.try_into().expect("one for each name");
    registry.register(Box::new(Gauges { queue: queue.clone(), lengths: lengths.clone(), gauges }))
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (running, waiting, outstanding) = self.queue.load();
        let standing = self.lengths.standing();
        let flag = |is: bool| f64::from(u8::from(is));
        let values = [
            f64::from(running),
            waiting as f64,
            outstanding,
            flag(standing.trusted),
            standing.mae,
            standing.tau,
            flag(self.queue.is_up()),
        ];
        self.gauges.iter().zip(values).for_each(|(gauge, value)| gauge.set(value));
        self.gauges.iter().flat_map(Collector::collect).collect()
    }
}
