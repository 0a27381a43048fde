//! The engine's counters as Prometheus metric families.

use prometheus::core::Collector;
use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};
use prometheus::{Gauge, IntCounter, Opts};
use trail_runtime::engine::{PredictionWindow, STEP_TOKENS_BOUNDS, Stats};

/// Name, help and value of each gauge of the engine.
fn gauges(stats: &Stats) -> [(&'static str, &'static str, f64); 13] {
    let kv_use = stats.blocks_used as f64 / stats.num_blocks.max(1) as f64;
    // Before the first comparison there is no error value, which Prometheus represents as NaN.
    let mae = stats.prediction_mae().unwrap_or(f64::NAN);
    let nan = f64::NAN;
    let none = PredictionWindow { mae: nan, bias: nan, tau: nan, tau_of_age: nan, trusted: true };
    let window = stats.prediction_window.unwrap_or(none);
    [
        ("trail_requests_running", "Requests in the last step's batch.", stats.running as f64),
        ("trail_requests_waiting", "Requests not in the last step's batch.", stats.waiting as f64),
        (
            "trail:predicted_tokens_outstanding",
            "Predicted output tokens to come; a request without a prediction counts as the mean.",
            stats.predicted_tokens_outstanding(),
        ),
        ("trail_kv_blocks_used", "KV blocks in use.", stats.blocks_used as f64),
        ("trail_kv_blocks", "KV blocks in all.", stats.num_blocks as f64),
        ("trail_kv_use_ratio", "Share of the KV blocks in use.", kv_use),
        ("trail_prediction_mae_tokens", "Mean absolute error of the refined predictions.", mae),
        ("trail_prediction_window_mae_tokens", "The same, of the last answers.", window.mae),
        (
            "trail_prediction_window_bias_tokens",
            "Mean of predicted less true remaining tokens, of the last answers.",
            window.bias,
        ),
        (
            "trail_prediction_window_tau",
            "Kendall's tau of predicted and true remaining tokens, of the last answers.",
            window.tau,
        ),
        (
            "trail_prediction_window_tau_of_age",
            "Kendall's tau of a constant length counted down, of the last answers.",
            window.tau_of_age,
        ),
        (
            "trail_predictions_trusted",
            "0 while requests are ranked by arrival, as predictions rank them worse than age.",
            f64::from(u8::from(window.trusted)),
        ),
        (
            "trail_host_kv_blocks_used",
            "KV blocks in use in host memory.",
            stats.host_blocks_used as f64,
        ),
    ]
}

/// Name, help and value of each counter of tokens.
fn token_counters(stats: &Stats) -> [(&'static str, &'static str, u64); 7] {
    [
        ("trail_prompt_tokens_total", "Prompt tokens taken in.", stats.prompt_tokens),
        ("trail_generated_tokens_total", "Tokens generated.", stats.generated_tokens),
        (
            "trail_recomputed_tokens_total",
            "Tokens computed again after an eviction.",
            stats.recomputed_tokens,
        ),
        (
            "trail_cached_tokens_total",
            "Tokens whose KV was found in the prefix cache.",
            stats.cached_tokens,
        ),
        (
            "trail_hash_collisions_total",
            "Requests that shared no KV block, as theirs had the hash of another sequence's.",
            stats.hash_collisions,
        ),
        ("trail_draft_tokens_total", "Draft tokens that speculation proposed.", stats.draft_tokens),
        (
            "trail_accepted_tokens_total",
            "Draft tokens that were the sampled ones.",
            stats.accepted_tokens,
        ),
    ]
}

/// Name, help and value of each other counter of the engine; `failed`: prompts that its predictor
/// could not read.
fn counters(stats: &Stats, failed: u64) -> [(&'static str, &'static str, u64); 13] {
    [
        ("trail_steps_total", "Forward passes.", stats.steps),
        (
            "trail_braked_steps_total",
            "Steps in which only the first request in the order could evict another, as most tokens of \
             a minute were recomputed.",
            stats.braked_steps,
        ),
        (
            "trail_preemptions_total",
            "Times a request lost its place in the batch.",
            stats.preemptions,
        ),
        (
            "trail_requests_shed_total",
            "Requests given up before they ran, as the engine was full.",
            stats.shed,
        ),
        (
            "trail_evictions_total",
            "Times a request's KV blocks were taken from it.",
            stats.evictions,
        ),
        (
            "trail_swaps_out_total",
            "Times a request's KV blocks left for the host.",
            stats.swaps_out,
        ),
        ("trail_swaps_in_total", "Times they came back.", stats.swaps_in),
        (
            "trail_predictions_fresh_total",
            "Predictions that were there in time.",
            stats.predictions_fresh,
        ),
        (
            "trail_predictions_late_total",
            "Predictions that were not there in time.",
            stats.predictions_late,
        ),
        (
            "trail_prediction_surprises_total",
            "Predictions that share little with what was believed before.",
            stats.prediction_surprises,
        ),
        (
            "trail_predictions_distrusted_total",
            "Times that ranking went over from predictions to arrival.",
            stats.predictions_distrusted,
        ),
        (
            "trail_prediction_errors_total",
            "Predictions compared with the true length.",
            stats.prediction_errors,
        ),
        (
            "trail_predictions_failed_total",
            "Prompts that the length predictor could not read: requests without a first prediction.",
            failed,
        ),
    ]
}

/// Converts the engine's counters, the prompts that its predictor could not read, and the share of
/// estimated times that held, to Prometheus metric families.
pub(crate) fn families(
    stats: &Stats,
    failed: u64,
    eta_coverage: Option<f64>,
) -> prometheus::Result<Vec<MetricFamily>> {
    let mut families = Vec::new();
    let coverage = (
        "trail:eta_coverage",
        "Share of the last 256 times that were within the interval of 80 % given before.",
        eta_coverage.unwrap_or(f64::NAN),
    );
    for (name, help, value) in gauges(stats).into_iter().chain([coverage]) {
        let gauge = Gauge::with_opts(Opts::new(name, help))?;
        gauge.set(value);
        families.extend(gauge.collect());
    }
    for (name, help, value) in token_counters(stats).into_iter().chain(counters(stats, failed)) {
        let counter = IntCounter::with_opts(Opts::new(name, help))?;
        counter.inc_by(value);
        families.extend(counter.collect());
    }
    families.push(step_tokens(stats));
    Ok(families)
}

/// Steps by the number of their tokens, as a histogram.
fn step_tokens(stats: &Stats) -> MetricFamily {
    let mut count = 0;
    // The encoder adds the bucket without a bound.
    let buckets = STEP_TOKENS_BOUNDS.iter().zip(&stats.step_tokens).map(|(&bound, steps)| {
        count += steps;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(f64::from(bound));
        bucket.set_cumulative_count(count);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(stats.step_tokens.iter().sum());
    histogram.set_sample_sum(stats.step_rows as f64);
    let mut metric = Metric::default();
    metric.set_histogram(histogram);
    let mut family = MetricFamily::default();
    family.set_name("trail_step_tokens".to_owned());
    family.set_help("Tokens of prompts and answers in a forward pass.".to_owned());
    family.set_field_type(MetricType::HISTOGRAM);
    family.set_metric(vec![metric]);
    family
}
