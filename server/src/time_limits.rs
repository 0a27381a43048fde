//! Times by which a client wants an answer: those that cannot be met are refused, or given up.

use std::time::{Duration, Instant};

use trail_simulator::forecast::{ArrivalForecast, Interval};

use crate::error::ApiError;

/// Limits of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeLimits {
    /// For the last token, after the arrival.
    pub deadline: Option<Duration>,
    /// For the first token.
    pub max_wait: Option<Duration>,
}

/// Fields of the limits, and the tokens that they are for.
const DEADLINE: (&str, &str) = ("deadline_ms", "the last token");
const MAX_WAIT: (&str, &str) = ("max_wait_ms", "the first token");

impl TimeLimits {
    /// True if there is a limit.
    pub(crate) fn is_any(&self) -> bool {
        self.deadline.is_some() || self.max_wait.is_some()
    }

    /// Refuses a request that would not meet a limit with 90 %.
    pub(crate) fn check(&self, of: &ArrivalForecast, retry_s: f64) -> Result<(), ApiError> {
        let refused = |limit: Option<Duration>, time: Interval, what| {
            let limit = limit.filter(|limit| limit.as_secs_f64() < time.high)?;
            Some(ApiError::not_in_time(what, limit, time, retry_s))
        };
        let first = refused(self.max_wait, of.first, MAX_WAIT);
        match first.or_else(|| refused(self.deadline, of.last, DEADLINE)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The error of an answer that has missed a limit, or will with 90 %: `first` and `last` are
    /// the times that are left. `None` for the first: it was sent.
    pub(crate) fn missed(
        &self,
        arrival: Instant,
        first: Option<Option<Interval>>,
        last: Option<Interval>,
    ) -> Option<ApiError> {
        let left = |limit: Duration| limit.as_secs_f64() - arrival.elapsed().as_secs_f64();
        let is_missed = |limit: Duration, time: Option<Interval>| {
            left(limit) <= 0.0 || time.is_some_and(|time| time.low > left(limit))
        };
        let late = first.zip(self.max_wait).filter(|&(time, limit)| is_missed(limit, time));
        if late.is_some() {
            return Some(ApiError::given_up(MAX_WAIT));
        }
        self.deadline.filter(|&limit| is_missed(limit, last)).map(|_| ApiError::given_up(DEADLINE))
    }
}
