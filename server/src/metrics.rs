//! `GET /metrics`: Prometheus metrics.

use std::sync::Arc;
use std::time::Instant;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, TextEncoder,
};
use trail_cli::{Error, dropped_notices};
use trail_runtime::engine::Stats;

use crate::access::Access;
use crate::engine_metrics;
use crate::vllm_metrics;

/// Bucket bounds of times to first token and of whole answers, seconds.
const SECONDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Bucket bounds of the time between two tokens, seconds.
const TOKEN_SECONDS: [f64; 11] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0, 5.0];

/// Metrics of the server; the engine's own counters are read at each scrape.
pub(crate) struct Metrics {
    registry: Registry,
    first_token: Histogram,
    latency: Histogram,
    inter_token: Histogram,
    requests: IntCounterVec,
    responses: IntCounterVec,
}

impl Metrics {
    /// Metrics at zero.
    pub(crate) fn new() -> Result<Self, Error> {
        Metrics::registered()
            .map_err(|error| Error::failed(format!("cannot set up metrics: {error}")))
    }

    fn registered() -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, bounds: &[f64]| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(bounds.to_vec()))
        };
        let metrics = Metrics {
            registry: Registry::new(),
            first_token: histogram(
                "trail_time_to_first_token_seconds",
                "Time from a request's arrival to its first token.",
                &SECONDS,
            )?,
            latency: histogram(
                "trail_request_latency_seconds",
                "Time from a request's arrival to its last token, of complete answers.",
                &SECONDS,
            )?,
            inter_token: histogram(
                "trail_inter_token_seconds",
                "Time between two tokens of one answer.",
                &TOKEN_SECONDS,
            )?,
            requests: IntCounterVec::new(
                Opts::new("trail_requests_total", "Requests that ended, by the reason."),
                &["finish_reason"],
            )?,
            responses: IntCounterVec::new(
                Opts::new("trail_http_responses_total", "HTTP responses, by their status."),
                &["code"],
            )?,
        };
        metrics.registry.register(Box::new(metrics.first_token.clone()))?;
        metrics.registry.register(Box::new(metrics.latency.clone()))?;
        metrics.registry.register(Box::new(metrics.inter_token.clone()))?;
        metrics.registry.register(Box::new(metrics.requests.clone()))?;
        metrics.registry.register(Box::new(metrics.responses.clone()))?;
        Ok(metrics)
    }

    /// Counts a response.
    pub(crate) fn responded(&self, status: u16) {
        self.responses.with_label_values(&[status.to_string().as_str()]).inc();
    }

    /// Watches an answer to the request of `access`.
    pub(crate) fn watch(&self, access: Arc<Access>) -> Watch {
        Watch {
            first_token: self.first_token.clone(),
            latency: self.latency.clone(),
            inter_token: self.inter_token.clone(),
            requests: self.requests.clone(),
            access,
            last_token: None,
            ended: false,
        }
    }

    pub(crate) fn text(
        &self,
        stats: &Stats,
        failed: u64,
        model: &str,
    ) -> prometheus::Result<Vec<u8>> {
        let mut families = self.registry.gather();
        families.extend(engine_metrics::families(stats, failed)?);
        let help = "Lines of the log that were dropped, as stderr was not read.";
        let dropped = IntCounter::new("trail_log_lines_dropped_total", help)?;
        dropped.inc_by(dropped_notices());
        families.extend(dropped.collect());
        families.extend(vllm_metrics::families(&families, stats.num_blocks, model));
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

/// Timer of one answer. An answer dropped before its end counts as cancelled, unless its request
/// has failed.
pub(crate) struct Watch {
    first_token: Histogram,
    latency: Histogram,
    inter_token: Histogram,
    requests: IntCounterVec,
    access: Arc<Access>,
    last_token: Option<Instant>,
    ended: bool,
}

impl Watch {
    /// Records a token.
    pub(crate) fn token(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => self.first_token.observe((now - self.access.arrival).as_secs_f64()),
            Some(last) => self.inter_token.observe((now - last).as_secs_f64()),
        }
    }

    /// Records the end of a complete answer.
    pub(crate) fn end(&mut self, reason: &str) {
        self.latency.observe(self.access.arrival.elapsed().as_secs_f64());
        self.count(reason);
    }

    fn count(&mut self, reason: &str) {
        self.ended = true;
        self.requests.with_label_values(&[reason]).inc();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.ended {
            self.count(self.access.reason_of_drop());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_once_by_its_end() {
        let metrics = Metrics::new().expect("metrics");
        let access = || Arc::new(Access::begin(String::new(), None));
        let mut watch = metrics.watch(access());
        watch.token();
        watch.token();
        watch.end("stop");
        drop(watch);
        drop(metrics.watch(access()));
        let failed = access();
        let watches = [metrics.watch(failed.clone()), metrics.watch(failed.clone())];
        failed.fail("error");
        drop(watches);
        metrics.responded(400);
        let text =
            metrics.text(&Stats { running: 3, ..Stats::default() }, 2, "demo").expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        for line in [
            "trail_requests_total{finish_reason=\"stop\"} 1",
            "trail_requests_total{finish_reason=\"cancelled\"} 1",
            "trail_requests_total{finish_reason=\"error\"} 2",
            "trail_http_responses_total{code=\"400\"} 1",
            "trail_time_to_first_token_seconds_count 1",
            "trail_inter_token_seconds_count 1",
            "trail_request_latency_seconds_count 1",
            "trail_requests_running 3",
            "trail_predictions_failed_total 2",
        ] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
    }
}
