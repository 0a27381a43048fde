//! A brake on evictions while most of the work is to compute again what they dropped.

/// Seconds over which tokens are counted.
const MEMORY_S: f64 = 60.0;

/// Tokens computed in about the last minute, and those among them that an eviction had dropped.
///
/// Round robin and feedback queues take turns, so in a cache that cannot hold all that take part
/// each turn may drop the KV of another. While the recomputed tokens are above a share of all, only
/// the first in the order may evict: it must, or nothing would ever finish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brake {
    max_share: f64,
    computed: f64,
    recomputed: f64,
    now_s: f64,
}

impl Brake {
    /// A brake above `max_share` of the tokens; with 1 it never holds.
    pub(crate) fn new(max_share: f32) -> Brake {
        Brake { max_share: f64::from(max_share), computed: 0.0, recomputed: 0.0, now_s: 0.0 }
    }

    /// Forgets by the time since the last call.
    pub(crate) fn on_step(&mut self, now_s: f64) {
        let kept = MEMORY_S / (MEMORY_S + (now_s - self.now_s).max(0.0));
        self.computed *= kept;
        self.recomputed *= kept;
        self.now_s = now_s;
    }

    /// Counts the tokens of a plan; `recomputed` of these had KV before.
    pub(crate) fn on_planned(&mut self, tokens: u32, recomputed: u32) {
        self.computed += f64::from(tokens);
        self.recomputed += f64::from(recomputed);
    }

    /// True if no request may be evicted for another, but for the first in the order.
    pub(crate) fn holds(&self) -> bool {
        self.recomputed > self.max_share * self.computed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_above_the_share_until_other_work_outweighs_it() {
        let mut brake = Brake::new(0.5);
        brake.on_step(100.0);
        assert!(!brake.holds());
        brake.on_planned(40, 20);
        assert!(!brake.holds(), "half is no more than half");
        brake.on_planned(10, 10);
        assert!(brake.holds());
        brake.on_planned(10, 0);
        assert!(!brake.holds());
    }

    /// After a minute without work half is left, and less after each further one.
    #[test]
    fn forgets_the_minutes_before() {
        let mut brake = Brake::new(0.5);
        brake.on_step(0.0);
        brake.on_planned(1000, 1000);
        brake.on_step(60.0);
        brake.on_planned(499, 0);
        assert!(brake.holds());
        brake.on_planned(2, 0);
        assert!(!brake.holds());
    }

    #[test]
    fn a_share_of_one_never_holds() {
        let mut brake = Brake::new(1.0);
        brake.on_planned(10, 10);
        assert!(!brake.holds());
    }
}
