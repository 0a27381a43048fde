//! Which requests precede those that are overdue.

use super::recent::Recent;

/// Judges which requests are short, and whether new ones should run before that is known.
///
/// Served before all others, overdue requests would take every place for as long as the backlog
/// lasts, and the mean would be that of first come, first served. So short requests precede them:
/// those that need less service than a share of the mean expected one. The prompt alone may not
/// tell which those are, so new requests precede them too, until the end of their burn-in, where
/// burn-ins find short requests at less service for each than that share.
///
/// If these requests need a share s of the service, overdue ones wait for 1/(1 - s) of the time
/// that they would wait without (work conservation), and the many short answers hardly wait.
pub(super) struct Express {
    share: f64,
    /// Expected service of arrivals, output tokens.
    service: Recent<1>,
    /// Share of the requests, long by the prompt, that looked short by the end of their burn-in.
    found_short: Recent<1>,
}

/// Requests that the means are over.
const MEMORY: u32 = 256;

impl Express {
    /// Requests that need less than `share` of the mean expected service are short.
    pub(super) fn new(share: f32) -> Express {
        let (service, found_short) = (Recent::over(MEMORY), Recent::over(MEMORY));
        Express { share: f64::from(share), service, found_short }
    }

    /// Takes an arrival into the mean.
    pub(super) fn on_arrival(&mut self, service: f64) {
        self.service.add([service]);
    }

    /// True if a request that still needs `service` output tokens is short.
    pub(super) fn is_short(&self, service: f64) -> bool {
        service < self.share * self.service.mean[0]
    }

    /// True if a burn-in is worth its service of `trial` output tokens, for a request that is long
    /// by the prompt.
    pub(super) fn is_worth(&self, trial: f64) -> bool {
        self.is_short(trial / self.found_short.mean[0])
    }

    /// Records whether a request that was long by the prompt looked short during its burn-in.
    pub(super) fn on_judged(&mut self, is_short: bool) {
        self.found_short.add([f64::from(u8::from(is_short))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_is_below_half_of_the_mean() {
        let mut express = Express::new(0.5);
        assert!(!express.is_short(0.0), "no mean yet");
        [20.0, 10.0, 60.0].into_iter().for_each(|service| express.on_arrival(service));
        assert!(express.is_short(14.9) && !express.is_short(15.0));
        let mut off = Express::new(0.0);
        off.on_arrival(20.0);
        assert!(!off.is_short(0.0));
    }

    /// A trial of 9 tokens that finds a short request every second time costs 18 for each, in 3 of
    /// 8 times 24: half of a mean of 40 lies between them.
    #[test]
    fn trials_are_worth_their_service_where_they_find_short_requests() {
        let mut express = Express::new(0.5);
        express.on_arrival(40.0);
        assert!(!express.is_worth(9.0), "nothing was found yet");
        [true, false].into_iter().for_each(|is_short| express.on_judged(is_short));
        assert!(express.is_worth(9.0) && !express.is_worth(10.0));
        for is_short in [true, true, false, false, false, false] {
            express.on_judged(is_short);
        }
        assert!(!express.is_worth(9.0));
    }
}
