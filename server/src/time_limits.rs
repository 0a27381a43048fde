//! Times by which a client wants an answer: those that cannot be met are refused, or given up.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;
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

    /// Completes when the first token is late, or the last one, of a request that arrived then:
    /// with the error.
    pub(crate) async fn until_first(&self, arrival: Instant) -> ApiError {
        let limits = [(self.max_wait, MAX_WAIT), (self.deadline, DEADLINE)];
        let given = limits.into_iter().filter_map(|(limit, what)| Some((limit?, what)));
        until(arrival, given.min_by_key(|(limit, _)| *limit)).await
    }

    /// Completes when the last token is late.
    pub(crate) async fn until_last(&self, arrival: Instant) -> ApiError {
        until(arrival, self.deadline.map(|limit| (limit, DEADLINE))).await
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

/// Completes when the time limit is over; never without one.
async fn until(arrival: Instant, limit: Option<(Duration, (&str, &str))>) -> ApiError {
    match limit {
        Some((limit, what)) => {
            sleep_until((arrival + limit).into()).await;
            ApiError::given_up(what)
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer is given up where even the early end of what is left is late, or time is over.
    #[test]
    fn a_limit_that_will_be_missed_ends_the_answer_before_it_is() {
        let seconds = |low, median, high| Some(Interval { low, median, high });
        let limits = |deadline: Option<u64>, max_wait: Option<u64>| TimeLimits {
            deadline: deadline.map(Duration::from_secs),
            max_wait: max_wait.map(Duration::from_secs),
        };
        let now = Instant::now();
        let missed = |limits: TimeLimits, first, last| {
            limits.missed(now, first, last).map(|error| format!("{error:?}"))
        };
        let both = limits(Some(100), Some(50));
        assert_eq!(
            missed(both, Some(seconds(40.0, 60.0, 80.0)), seconds(90.0, 120.0, 130.0)),
            None
        );
        let first = missed(both, Some(seconds(51.0, 60.0, 80.0)), seconds(90.0, 120.0, 130.0));
        assert!(first.as_ref().is_some_and(|text| text.contains("max_wait_ms")), "{first:?}");
        // The first token was sent: its limit says nothing.
        let last = missed(both, None, seconds(101.0, 120.0, 130.0));
        assert!(last.as_ref().is_some_and(|text| text.contains("deadline_ms")), "{last:?}");
        // Nothing is known of the times, before steps were timed.
        assert_eq!(missed(both, Some(None), None), None);
        assert_eq!(missed(limits(None, None), Some(seconds(9.0, 9.0, 9.0)), None), None);
        assert!(missed(limits(Some(0), None), None, None).is_some(), "it is over");
    }
}
