//! The metrics of [`super::metrics`] under vLLM's names, which gateways (llm-d, the Gateway API
//! inference extension) and dashboards look for: `vllm/v1/metrics/loggers.py`.

use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};
use trail_runtime::backend::BLOCK_TOKENS;

/// Label of a metric of one model.
pub(crate) const MODEL_NAME: &str = "model_name";

/// vLLM's name of a metric, and ours.
const NAMES: [(&str, &str); 24] = [
    ("vllm:num_requests_running", "trail_requests_running"),
    ("vllm:num_requests_waiting", "trail_requests_waiting"),
    ("vllm:kv_cache_usage_perc", "trail_kv_use_ratio"),
    ("vllm:num_preemptions_total", "trail_preemptions_total"),
    ("vllm:prompt_tokens_total", "trail_prompt_tokens_total"),
    ("vllm:prompt_tokens_cached_total", "trail_cached_tokens_total"),
    ("vllm:prefix_cache_queries_total", "trail_prompt_tokens_total"),
    ("vllm:prefix_cache_hits_total", "trail_cached_tokens_total"),
    ("vllm:spec_decode_num_draft_tokens_total", "trail_draft_tokens_total"),
    ("vllm:spec_decode_num_accepted_tokens_total", "trail_accepted_tokens_total"),
    ("vllm:generation_tokens_total", "trail_generated_tokens_total"),
    ("vllm:time_to_first_token_seconds", "trail_time_to_first_token_seconds"),
    ("vllm:inter_token_latency_seconds", "trail_inter_token_seconds"),
    ("vllm:e2e_request_latency_seconds", "trail_request_latency_seconds"),
    ("vllm:request_time_per_output_token_seconds", "trail_mean_inter_token_seconds"),
    ("vllm:request_queue_time_seconds", "trail_request_queue_seconds"),
    ("vllm:request_prefill_time_seconds", "trail_request_prefill_seconds"),
    ("vllm:request_decode_time_seconds", "trail_request_decode_seconds"),
    ("vllm:request_inference_time_seconds", "trail_request_inference_seconds"),
    ("vllm:request_prompt_tokens", "trail_request_prompt_tokens"),
    ("vllm:request_generation_tokens", "trail_request_generated_tokens"),
    ("vllm:request_params_max_tokens", "trail_request_max_tokens"),
    ("vllm:request_params_n", "trail_request_n"),
    // A histogram, despite its name.
    ("vllm:iteration_tokens_total", "trail_step_tokens"),
];

/// Copies of `families` under vLLM's names, with its labels, and what it says of its KV cache:
/// `num_blocks` blocks.
pub(crate) fn families(
    families: &[MetricFamily],
    num_blocks: u64,
    model: &str,
) -> Vec<MetricFamily> {
    let ours = |name| families.iter().find(|family| family.name() == name);
    let labels = [label("engine", "0"), label(MODEL_NAME, model)];
    let renamed = NAMES.into_iter().filter_map(|(theirs, name)| {
        let mut family = ours(name)?.clone();
        family.set_name(theirs.to_owned());
        family.mut_metric().iter_mut().for_each(|metric| metric.set_label(labels.to_vec()));
        Some(family)
    });
    let ended = ours("trail_requests_total").and_then(|family| successes(family, &labels));
    renamed.chain(ended).chain([cache_config(num_blocks)]).collect()
}

/// Requests by the reason of their end, in vLLM's words; it does not count those that failed.
/// `None` if there are no others, as a family without metrics cannot be written.
fn successes(ended: &MetricFamily, labels: &[LabelPair]) -> Option<MetricFamily> {
    let in_their_words = |metric: &Metric| {
        let reason = match metric.get_label().first()?.value() {
            "cancelled" => "abort",
            reason @ ("stop" | "length") => reason,
            _ => return None,
        };
        let mut renamed = metric.clone();
        renamed.set_label([&[label("finished_reason", reason)], labels].concat());
        Some(renamed)
    };
    let by_reason: Vec<_> = ended.get_metric().iter().filter_map(in_their_words).collect();
    let mut family = ended.clone();
    family.set_name("vllm:request_success_total".to_owned());
    family.set_metric(by_reason);
    (!family.get_metric().is_empty()).then_some(family)
}

/// The size of the KV cache as labels of a constant: a gauge, as vLLM's is.
fn cache_config(num_blocks: u64) -> MetricFamily {
    let labels = vec![
        label("block_size", &BLOCK_TOKENS.to_string()),
        label("engine", "0"),
        label("num_gpu_blocks", &num_blocks.to_string()),
    ];
    let mut one = Gauge::default();
    one.set_value(1.0);
    let mut metric = Metric::from_label(labels);
    metric.set_gauge(one);
    let mut family = MetricFamily::default();
    family.set_name("vllm:cache_config_info".to_owned());
    family.set_help("Size of the KV cache, blocks and tokens of a block.".to_owned());
    family.set_field_type(MetricType::GAUGE);
    family.set_metric(vec![metric]);
    family
}

/// A label.
pub(crate) fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector;
    use prometheus::{IntCounterVec, Opts};

    use super::*;

    /// The answers by reason, after requests have ended for `reasons`.
    fn successes_of(reasons: &[&str]) -> Option<Vec<(String, f64)>> {
        let ended = IntCounterVec::new(Opts::new("trail_requests_total", "Ended."), &["reason"]);
        let ended = ended.expect("a counter");
        reasons.iter().for_each(|reason| ended.with_label_values(&[*reason]).inc());
        let families = families(&ended.collect(), 7, "demo");
        let family = families.iter().find(|of| of.name() == "vllm:request_success_total")?;
        let of = |metric: &Metric| {
            (metric.get_label()[0].value().to_owned(), metric.get_counter().get_value())
        };
        Some(family.get_metric().iter().map(of).collect())
    }

    #[test]
    fn answers_are_counted_in_vllms_words_and_failures_are_not() {
        assert_eq!(successes_of(&["error", "overloaded"]), None);
        let mut found = successes_of(&["stop", "error", "cancelled", "stop"]).expect("answers");
        found.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(found, [("abort".to_owned(), 1.0), ("stop".to_owned(), 2.0)]);
    }
}
