//! Requests and tokens that one key may use in a minute.
//!
//! Both are buckets that fill evenly and hold a minute's amount. A request takes one from the
//! first when it arrives. Its tokens are taken as they are known, those of the prompt and then each
//! of the answer, so that no estimate is held back: the second bucket can go below zero, and no
//! request is let in until it is filled again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// Limits of a key, for a minute; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Requests with a body.
    pub requests: Option<u32>,
    /// Tokens of prompts and answers.
    pub tokens: Option<u32>,
}

/// Amounts that a key may still use.
pub(crate) struct RateLimit {
    limits: Limits,
    buckets: Mutex<Buckets>,
    /// Tokens since the last look at the buckets: a stream adds to it without the lock.
    used_tokens: AtomicU64,
}

struct Buckets {
    requests: Bucket,
    tokens: Bucket,
    filled: Instant,
}

/// An amount between a debt and the limit of a minute.
#[derive(Clone, Copy)]
struct Bucket {
    limit: f64,
    level: f64,
}

impl Bucket {
    /// A full bucket.
    fn new(limit: Option<u32>) -> Self {
        let limit = limit.map_or(f64::INFINITY, f64::from);
        Bucket { limit, level: limit }
    }

    fn fill(&mut self, elapsed: Duration) {
        if self.limit.is_finite() {
            self.level = (self.level + self.limit * elapsed.as_secs_f64() / 60.0).min(self.limit);
        }
    }

    /// Time until the level is `level`.
    fn wait(&self, level: f64) -> Duration {
        match self.limit.is_finite() {
            true => Duration::from_secs_f64((level - self.level).max(0.0) / self.limit * 60.0),
            false => Duration::ZERO,
        }
    }
}

/// The state of the limits at a request, for the headers of its response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateState {
    limits: Limits,
    remaining: [f64; 2],
    reset: [Duration; 2],
}

/// A request over a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exceeded {
    /// The limit: requests or tokens.
    pub what: &'static str,
    /// A minute's amount.
    pub limit: u32,
    /// Time until a request is let in again.
    pub wait: Duration,
}

impl RateLimit {
    /// Limits that nothing has used.
    pub(crate) fn new(limits: Limits) -> Self {
        let (requests, tokens) = (Bucket::new(limits.requests), Bucket::new(limits.tokens));
        let buckets = Mutex::new(Buckets { requests, tokens, filled: Instant::now() });
        RateLimit { limits, buckets, used_tokens: AtomicU64::new(0) }
    }

    /// The limits.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Counts tokens of a request that was let in.
    pub(crate) fn use_tokens(&self, tokens: u64) {
        self.used_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Lets a request in at `now`, or says which limit it exceeds; and the state of the limits.
    pub(crate) fn admit(&self, now: Instant) -> (Result<(), Exceeded>, RateState) {
        let used = self.used_tokens.swap(0, Ordering::Relaxed);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(buckets.filled);
        buckets.filled = buckets.filled.max(now);
        let Buckets { requests, tokens, .. } = &mut *buckets;
        requests.fill(elapsed);
        // Used since the last look: part of it before the bucket was full.
        tokens.level -= used as f64;
        tokens.fill(elapsed);
        let exceeded = match (self.limits.requests, self.limits.tokens) {
            (Some(limit), _) if requests.level < 1.0 => {
                Some(Exceeded { what: "requests", limit, wait: requests.wait(1.0) })
            }
            (_, Some(limit)) if tokens.level < 1.0 => {
                Some(Exceeded { what: "tokens", limit, wait: tokens.wait(1.0) })
            }
            _ => None,
        };
        if exceeded.is_none() {
            requests.level -= 1.0;
        }
        let buckets = [*requests, *tokens];
        let state = RateState {
            limits: self.limits,
            remaining: buckets.map(|bucket| bucket.level.max(0.0).floor()),
            reset: buckets.map(|bucket| bucket.wait(bucket.limit)),
        };
        (exceeded.map_or(Ok(()), Err), state)
    }
}

impl RateState {
    /// Adds OpenAI's headers of the limits that there are.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let limits = [self.limits.requests, self.limits.tokens];
        for (at, name) in ["requests", "tokens"].into_iter().enumerate() {
            let Some(limit) = limits[at] else { continue };
            for (kind, value) in [
                ("limit", limit.to_string()),
                ("remaining", self.remaining[at].to_string()),
                ("reset", duration(self.reset[at])),
            ] {
                let header = HeaderName::try_from(format!("x-ratelimit-{kind}-{name}"));
                if let (Ok(header), Ok(value)) = (header, HeaderValue::try_from(value)) {
                    headers.insert(header, value);
                }
            }
        }
    }
}

/// A duration as OpenAI writes it: `850ms`, `12.5s`, `1m3s`.
fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match (millis / 60_000, millis % 60_000) {
        (0, rest) if rest < 1000 => format!("{rest}ms"),
        (0, rest) => format!("{}s", rest as f64 / 1e3),
        (minutes, rest) => format!("{minutes}m{}s", rest / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(requests: Option<u32>, tokens: Option<u32>) -> (RateLimit, Instant) {
        let limit = RateLimit::new(Limits { requests, tokens });
        let start = limit.buckets.lock().expect("a lock").filled;
        (limit, start)
    }

    #[test]
    fn requests_come_back_evenly() {
        let (limit, start) = limits(Some(6), None);
        let at = |seconds: f64| limit.admit(start + Duration::from_secs_f64(seconds)).0;
        for _ in 0..6 {
            assert_eq!(at(0.0), Ok(()));
        }
        let exceeded = at(0.0).expect_err("the seventh");
        assert_eq!((exceeded.what, exceeded.limit), ("requests", 6));
        assert_eq!(exceeded.wait, Duration::from_secs(10));
        assert!(at(9.9).is_err() && at(10.1).is_ok() && at(10.2).is_err());
        // A minute of rest is worth a minute's amount, and an hour no more.
        let let_in = (0..10).filter(|_| at(3600.0).is_ok()).count();
        assert_eq!(let_in, 6);
    }

    #[test]
    fn tokens_are_paid_after_and_a_debt_is_waited_for() {
        let (limit, start) = limits(None, Some(60));
        let at = |seconds| limit.admit(start + Duration::from_secs(seconds));
        assert_eq!(at(0).0, Ok(()));
        limit.use_tokens(50);
        limit.use_tokens(40);
        let (refused, state) = at(0);
        let exceeded = refused.expect_err("a debt of 30");
        assert_eq!((exceeded.what, exceeded.wait), ("tokens", Duration::from_secs(31)));
        assert_eq!((state.remaining[1], state.reset[1]), (0.0, Duration::from_secs(90)));
        assert!(at(30).0.is_err() && at(31).0.is_ok());
    }

    #[test]
    fn headers_are_those_of_the_limits_that_there_are() {
        let (limit, start) = limits(Some(10), None);
        let mut headers = HeaderMap::new();
        limit.admit(start).1.write(&mut headers);
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(text("x-ratelimit-limit-requests"), Some("10"));
        assert_eq!(text("x-ratelimit-remaining-requests"), Some("9"));
        assert_eq!(text("x-ratelimit-reset-requests"), Some("6s"));
        assert_eq!(headers.len(), 3);
        let (free, start) = limits(None, None);
        assert!((0..1000).all(|_| free.admit(start).0.is_ok()));
        let mut headers = HeaderMap::new();
        free.admit(start).1.write(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn durations_have_openais_form() {
        for (millis, text) in [(0, "0ms"), (850, "850ms"), (12_500, "12.5s"), (63_900, "1m3s")] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
