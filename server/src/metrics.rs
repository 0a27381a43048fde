//! `GET /metrics`: Prometheus metrics.

use std::sync::Arc;
use std::time::Instant;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, IntCounter, IntCounterVec, Opts, Registry, TextEncoder};
use trail_cli::{Error, dropped_notices};
use trail_runtime::engine::Stats;

use crate::access::Access;
use crate::engine_metrics;
use crate::request_metrics::{RequestMetrics, RequestSize, Watch};
use crate::vllm_metrics::{self, MODEL_NAME, label};

/// Metrics of the server itself.
pub(crate) struct Metrics {
    registry: Registry,
    responses: IntCounterVec,
}

/// Metrics of the answers of a model; its engine's own counters are read at each scrape.
pub(crate) struct ModelMetrics {
    registry: Registry,
    answers: Arc<RequestMetrics>,
}

/// A model at a scrape.
pub(crate) struct ModelReport<'a> {
    pub name: &'a str,
    pub metrics: &'a ModelMetrics,
    /// Counters of its engine.
    pub stats: Stats,
    /// Prompts that its predictor could not read.
    pub failed: u64,
    /// Share of estimated times that held.
    pub eta_coverage: Option<f64>,
}

fn set_up<T>(metrics: prometheus::Result<T>) -> Result<T, Error> {
    metrics.map_err(|error| Error::failed(format!("cannot set up metrics: {error}")))
}

impl ModelMetrics {
    /// Metrics at zero.
    pub(crate) fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let answers = Arc::new(set_up(RequestMetrics::register(&registry))?);
        Ok(ModelMetrics { registry, answers })
    }

    /// Watches an answer to the request of `access`, submitted then.
    pub(crate) fn watch(&self, access: Arc<Access>, size: RequestSize, then: Instant) -> Watch {
        Watch::new(self.answers.clone(), access, size, then)
    }
}

impl ModelReport<'_> {
    /// The metrics of the model, without its name, and under vLLM's names.
    fn families(&self) -> prometheus::Result<Vec<MetricFamily>> {
        let mut families = self.metrics.registry.gather();
        families.extend(engine_metrics::families(&self.stats, self.failed, self.eta_coverage)?);
        families.extend(vllm_metrics::families(&families, self.stats.num_blocks, self.name));
        Ok(families)
    }

    /// The same, each with the model's name.
    fn named_families(&self) -> prometheus::Result<Vec<MetricFamily>> {
        let mut families = self.families()?;
        for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
            let mut labels = metric.get_label().to_vec();
            if labels.iter().all(|label| label.name() != MODEL_NAME) {
                labels.push(label(MODEL_NAME, self.name));
                metric.set_label(labels);
            }
        }
        Ok(families)
    }
}

impl Metrics {
    /// Metrics at zero.
    pub(crate) fn new() -> Result<Self, Error> {
        set_up(Metrics::registered())
    }

    fn registered() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let responses = IntCounterVec::new(
            Opts::new("trail_http_responses_total", "HTTP responses, by their status."),
            &["code"],
        )?;
        registry.register(Box::new(responses.clone()))?;
        Ok(Metrics { registry, responses })
    }

    /// The registry, for metrics of a server without models.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts a response.
    pub(crate) fn responded(&self, status: u16) {
        self.responses.with_label_values(&[status.to_string().as_str()]).inc();
    }

    /// All metrics as text. Those of several models are told apart by the label `model_name`.
    pub(crate) fn text(&self, models: &[ModelReport<'_>]) -> prometheus::Result<Vec<u8>> {
        let mut families = match models {
            [one] => one.families()?,
            several => {
                let each = several.iter().map(ModelReport::named_families);
                merged(each.collect::<Result<_, _>>()?)
            }
        };
        families.extend(self.registry.gather());
        let help = "Lines of the log that were dropped, as stderr was not read.";
        let dropped = IntCounter::new("trail_log_lines_dropped_total", help)?;
        dropped.inc_by(dropped_notices());
        families.extend(dropped.collect());
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

/// One family of each name, with the metrics of all.
fn merged(models: Vec<Vec<MetricFamily>>) -> Vec<MetricFamily> {
    let mut all: Vec<MetricFamily> = Vec::new();
    for family in models.into_iter().flatten() {
        match all.iter_mut().find(|other| other.name() == family.name()) {
            Some(other) => other.mut_metric().extend_from_slice(family.get_metric()),
            None => all.push(family),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_request_is_counted_once_by_its_end() {
        let (metrics, model) = (Metrics::new().expect("metrics"), ModelMetrics::new());
        let model = model.expect("metrics of a model");
        let access = || Arc::new(Access::begin(String::new(), None));
        let size = RequestSize { prompt_tokens: 30, max_tokens: 7, answers: 4 };
        let mut watch = model.watch(access(), size, Instant::now());
        watch.token(|| Some(Instant::now()));
        watch.token(|| None);
        watch.end("stop");
        drop(watch);
        drop(model.watch(access(), size, Instant::now()));
        let failed = access();
        let watches = [
            model.watch(failed.clone(), size, Instant::now()),
            model.watch(failed.clone(), size, Instant::now()),
        ];
        failed.fail("error");
        drop(watches);
        metrics.responded(400);
        let mut stats = Stats { running: 3, step_rows: 999, ..Stats::default() };
        (stats.step_tokens[0], stats.step_tokens[1], stats.step_tokens[13]) = (2, 1, 2);
        let report =
            |name| ModelReport { name, metrics: &model, stats, failed: 2, eta_coverage: None };
        let text = |models: &[&'static str]| {
            let reports: Vec<_> = models.iter().map(|&name| report(name)).collect();
            String::from_utf8(metrics.text(&reports).expect("text")).expect("UTF-8")
        };
        let several = text(&["a", "b"]);
        for line in [
            "trail_requests_total{finish_reason=\"stop\",model_name=\"b\"} 1",
            "trail_requests_running{model_name=\"a\"} 3",
            "trail_step_tokens_bucket{model_name=\"b\",le=\"8\"} 3",
            "vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 3",
            "trail_http_responses_total{code=\"400\"} 1",
        ] {
            assert!(several.contains(line), "{line} is missing in:\n{several}");
        }
        let help = |line: &&str| line.starts_with("# HELP trail_requests_running ");
        assert_eq!(several.lines().filter(help).count(), 1, "one family of each name");
        let text = text(&["demo"]);
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
