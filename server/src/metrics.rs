//! `GET /metrics`: Prometheus metrics.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{Encoder, IntCounter, IntCounterVec, Opts, Registry, TextEncoder};
use trail_cli::{Error, dropped_notices};
use trail_runtime::engine::Stats;

use crate::access::Access;
use crate::engine_metrics;
use crate::request_metrics::{RequestMetrics, RequestSize, Watch};
use crate::vllm_metrics;

/// Metrics of the server; the engine's own counters are read at each scrape.
pub(crate) struct Metrics {
    registry: Registry,
    answers: Arc<RequestMetrics>,
    responses: IntCounterVec,
}

impl Metrics {
    /// Metrics at zero.
    pub(crate) fn new() -> Result<Self, Error> {
        Metrics::registered()
            .map_err(|error| Error::failed(format!("cannot set up metrics: {error}")))
    }

    fn registered() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let answers = Arc::new(RequestMetrics::register(&registry)?);
        let responses = IntCounterVec::new(
            Opts::new("trail_http_responses_total", "HTTP responses, by their status."),
            &["code"],
        )?;
        registry.register(Box::new(responses.clone()))?;
        Ok(Metrics { registry, answers, responses })
    }

    /// Counts a response.
    pub(crate) fn responded(&self, status: u16) {
        self.responses.with_label_values(&[status.to_string().as_str()]).inc();
    }

    /// Watches an answer to the request of `access`.
    pub(crate) fn watch(&self, access: Arc<Access>, size: RequestSize) -> Watch {
        Watch::new(self.answers.clone(), access, size)
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_request_is_counted_once_by_its_end() {
        let metrics = Metrics::new().expect("metrics");
        let access = || Arc::new(Access::begin(String::new(), None));
        let size = RequestSize { prompt_tokens: 30, max_tokens: 7, answers: 4 };
        let mut watch = metrics.watch(access(), size);
        watch.token(|| Some(Instant::now()));
        watch.token(|| None);
        watch.end("stop");
        drop(watch);
        drop(metrics.watch(access(), size));
        let failed = access();
        let watches = [metrics.watch(failed.clone(), size), metrics.watch(failed.clone(), size)];
        failed.fail("error");
        drop(watches);
        metrics.responded(400);
        let mut stats = Stats { running: 3, step_rows: 999, ..Stats::default() };
        (stats.step_tokens[0], stats.step_tokens[1], stats.step_tokens[13]) = (2, 1, 2);
        let text = metrics.text(&stats, 2, "demo").expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        for line in [
            "trail_requests_total{finish_reason=\"stop\"} 1",
            "trail_requests_total{finish_reason=\"cancelled\"} 1",
            "trail_requests_total{finish_reason=\"error\"} 2",
            "trail_http_responses_total{code=\"400\"} 1",
            "trail_time_to_first_token_seconds_count 1",
            "trail_inter_token_seconds_count 1",
            "trail_request_latency_seconds_count 1",
            "trail_request_queue_seconds_count 1",
            "trail_request_prefill_seconds_count 1",
            "trail_request_decode_seconds_count 1",
            "trail_request_inference_seconds_count 1",
            "trail_mean_inter_token_seconds_count 1",
            "trail_request_prompt_tokens_sum 30",
            "trail_request_generated_tokens_sum 2",
            "trail_request_max_tokens_sum 7",
            "trail_request_n_sum 4",
            "trail_step_tokens_bucket{le=\"8\"} 3",
            "trail_step_tokens_bucket{le=\"+Inf\"} 5",
            "trail_step_tokens_sum 999",
            "trail_step_tokens_count 5",
            "trail_requests_running 3",
            "trail_predictions_failed_total 2",
        ] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
    }
}
