//! Metrics of one answer: how long each part of it took, and how many tokens it had.

use std::sync::Arc;
use std::time::Instant;

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry};

use crate::access::Access;

/// Bucket bounds of times to first token and of whole answers, seconds.
const SECONDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Bucket bounds of the time between two tokens, seconds.
const TOKEN_SECONDS: [f64; 11] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1.0, 5.0];
/// Bucket bounds of numbers of tokens.
const TOKENS: [f64; 17] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5];
/// Bucket bounds of the number of answers to a request.
const ANSWERS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Metrics of all answers.
#[derive(Clone)]
pub(crate) struct RequestMetrics {
    first_token: Histogram,
    latency: Histogram,
    inter_token: Histogram,
    mean_inter_token: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
    max_tokens: Histogram,
    answers: Histogram,
    requests: IntCounterVec,
}

impl RequestMetrics {
    /// Metrics at zero, in `registry`.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, bounds: &[f64]| {
            let opts = HistogramOpts::new(name, help).buckets(bounds.to_vec());
            registered(registry, Histogram::with_opts(opts)?)
        };
        let seconds = |name: &str, help: &str| histogram(name, help, &SECONDS);
        let by_reason = Opts::new("trail_requests_total", "Requests that ended, by the reason.");
        Ok(RequestMetrics {
            first_token: seconds(
                "trail_time_to_first_token_seconds",
                "Time from a request's arrival to its first token.",
            )?,
            latency: seconds(
                "trail_request_latency_seconds",
                "Time from a request's arrival to its last token, of complete answers.",
            )?,
            inter_token: histogram(
                "trail_inter_token_seconds",
                "Time between two tokens of one answer.",
                &TOKEN_SECONDS,
            )?,
            mean_inter_token: histogram(
                "trail_mean_inter_token_seconds",
                "Mean time between two tokens, of complete answers.",
                &TOKEN_SECONDS,
            )?,
            queue: seconds(
                "trail_request_queue_seconds",
                "Time from a request's submission to its first step, of complete answers.",
            )?,
            prefill: seconds(
                "trail_request_prefill_seconds",
                "Time from a request's first step to its first token, of complete answers.",
            )?,
            decode: seconds(
                "trail_request_decode_seconds",
                "Time from a request's first token to its last one, of complete answers.",
            )?,
            inference: seconds(
                "trail_request_inference_seconds",
                "Time from a request's first step to its last token, of complete answers.",
            )?,
            prompt_tokens: histogram(
                "trail_request_prompt_tokens",
                "Tokens of a prompt, of complete answers.",
                &TOKENS,
            )?,
            generated_tokens: histogram(
                "trail_request_generated_tokens",
                "Tokens of a complete answer.",
                &TOKENS,
            )?,
            max_tokens: histogram(
                "trail_request_max_tokens",
                "Tokens that a complete answer could have had.",
                &TOKENS,
            )?,
            answers: histogram(
                "trail_request_n",
                "Answers that the request of a complete one asked for.",
                &ANSWERS,
            )?,
            requests: registered(registry, IntCounterVec::new(by_reason, &["finish_reason"])?)?,
        })
    }
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Size of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestSize {
    pub prompt_tokens: usize,
    pub max_tokens: u32,
    /// Answers to the request.
    pub answers: usize,
}

/// Timer of one answer. An answer dropped before its end counts as cancelled, unless its request
/// has failed.
pub(crate) struct Watch {
    metrics: Arc<RequestMetrics>,
    access: Arc<Access>,
    size: RequestSize,
    submitted: Instant,
    /// Of the first step.
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    tokens: u64,
    ended: bool,
}

impl Watch {
    /// The timer of an answer to the request of `access`.
    pub(crate) fn new(
        metrics: Arc<RequestMetrics>,
        access: Arc<Access>,
        size: RequestSize,
        submitted: Instant,
    ) -> Self {
        Watch {
            metrics,
            access,
            size,
            submitted,
            started: None,
            first_token: None,
            last_token: None,
            tokens: 0,
            ended: false,
        }
    }

    /// Records a token; `started` is the time of the request's first step.
    pub(crate) fn token(&mut self, started: impl FnOnce() -> Option<Instant>) {
        let now = Instant::now();
        self.tokens += 1;
        match self.last_token.replace(now) {
            None => {
                self.started = self.started.or_else(started);
                self.first_token = Some(now);
                let waited = now - self.access.arrival;
                self.metrics.first_token.observe(waited.as_secs_f64());
            }
            Some(last) => self.metrics.inter_token.observe((now - last).as_secs_f64()),
        }
    }

    /// Records that the request has its slot, for an answer whose tokens may not be seen.
    pub(crate) fn start(&mut self) {
        self.started = Some(Instant::now());
    }

    /// Records the number of tokens that the whole answer said it has.
    pub(crate) fn set_tokens(&mut self, tokens: u64) {
        self.tokens = tokens;
    }

    /// Records the end of a complete answer.
    pub(crate) fn end(&mut self, reason: &str) {
        self.metrics.latency.observe(self.access.arrival.elapsed().as_secs_f64());
        self.observe_parts();
        self.count(reason);
    }

    /// Records the end of a complete answer whose tokens are not known.
    pub(crate) fn end_uncounted(&mut self, reason: &str) {
        self.metrics.latency.observe(self.access.arrival.elapsed().as_secs_f64());
        self.count(reason);
    }

    fn observe_parts(&self) {
        let Watch { metrics, size, .. } = self;
        metrics.prompt_tokens.observe(size.prompt_tokens as f64);
        metrics.generated_tokens.observe(self.tokens as f64);
        metrics.max_tokens.observe(f64::from(size.max_tokens));
        metrics.answers.observe(size.answers as f64);
        let observe = |histogram: &Histogram, from: Instant, to: Instant| {
            histogram.observe(to.saturating_duration_since(from).as_secs_f64());
        };
        if let Some(started) = self.started {
            observe(&metrics.queue, self.submitted, started);
        }
        let (Some(first), Some(last)) = (self.first_token, self.last_token) else { return };
        observe(&metrics.decode, first, last);
        if self.tokens > 1 {
            let decode = last.saturating_duration_since(first).as_secs_f64();
            metrics.mean_inter_token.observe(decode / (self.tokens - 1) as f64);
        }
        if let Some(started) = self.started {
            observe(&metrics.prefill, started, first);
            observe(&metrics.inference, started, last);
        }
    }

    fn count(&mut self, reason: &str) {
        self.ended = true;
        self.metrics.requests.with_label_values(&[reason]).inc();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.ended {
            self.count(self.access.reason_of_drop());
        }
    }
}
