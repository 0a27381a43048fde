//! The engine's time: the wall, or a simulated clock that advances by the calibrated cost of steps.
//!
//! Everything that decides by time asks a [`Clock`]: arrivals, the deadline for predictions, the
//! end of transfers, the choice between swap and recompute. Under [`StepClock`] no decision depends
//! on the machine's speed, so that two runs of one workload make the same decisions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trail_scheduler::{StepCost, StepWork};

/// Source of time, in nanoseconds since the engine's start.
pub trait Clock: Send + Sync {
    /// Now.
    fn now_ns(&self) -> u64;

    /// Accounts for a collected step of `work`.
    fn complete_step(&self, work: &StepWork);

    /// The simulated clock, if this is one.
    fn simulated(&self) -> Option<&StepClock>;

    /// Now, in seconds.
    fn now_s(&self) -> f64 {
        self.now_ns() as f64 * 1e-9
    }
}

/// Real time.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    start: Instant,
}

impl WallClock {
    /// A clock that starts now.
    pub fn new() -> WallClock {
        WallClock { start: Instant::now() }
    }
}

impl Default for WallClock {
    fn default() -> Self {
        WallClock::new()
    }
}

impl Clock for WallClock {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn complete_step(&self, _work: &StepWork) {}

    fn simulated(&self) -> Option<&StepClock> {
        None
    }
}

/// Transfer rate between device and host under a [`StepClock`], bytes per second: PCIe 4.0 x16.
const TRANSFER_BYTES_PER_S: u64 = 25_000_000_000;

/// Simulated time: advances by the cost of each step, and by [`StepClock::advance_to`] while idle.
#[derive(Debug)]
pub struct StepClock {
    cost: StepCost,
    now_ns: AtomicU64,
}

impl StepClock {
    /// A clock at 0 over `cost`.
    pub fn new(cost: StepCost) -> StepClock {
        StepClock { cost, now_ns: AtomicU64::new(0) }
    }

    /// The costs that advance it.
    pub fn cost(&self) -> &StepCost {
        &self.cost
    }

    /// Advances to `ns`; no effect if that is in the past.
    pub fn advance_to(&self, ns: u64) {
        self.now_ns.fetch_max(ns, Ordering::AcqRel);
    }

    /// Duration of a transfer of `bytes`.
    pub fn transfer(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(TRANSFER_BYTES_PER_S);
        Duration::from_nanos(ns as u64)
    }
}

impl Clock for StepClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Acquire)
    }

    fn complete_step(&self, work: &StepWork) {
        self.now_ns.fetch_add(self.cost.ns(work), Ordering::AcqRel);
    }

    fn simulated(&self) -> Option<&StepClock> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_clock_advances_by_costs_and_jumps_forward_only() {
        let cost = StepCost {
            fixed: 100.0,
            decode_row: 10.0,
            prefill_token: 5.0,
            context_token: 0.5,
            experts: None,
        };
        let clock = StepClock::new(cost);
        clock.complete_step(&StepWork {
            decode_rows: 2,
            prefill_tokens: 3,
            context_tokens: 5,
            kv_tokens: 0,
        });
        // 100 + 20 + 15 + 2.5, rounded to nearest.
        assert_eq!(clock.now_ns(), 138);
        clock.advance_to(120);
        assert_eq!(clock.now_ns(), 138);
        clock.advance_to(1_000);
        assert_eq!(clock.now_ns(), 1_000);
        assert_eq!(clock.transfer(25_000), Duration::from_micros(1));
    }
}
