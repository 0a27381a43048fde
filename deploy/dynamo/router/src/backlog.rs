//! The work of one worker, and the time until a further job can run there. Pure.

use trail_dynamo_proto::Order;

/// Expected remaining tokens of a worker's requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backlog {
    slots: usize,
    /// Remaining tokens, ascending.
    sorted: Vec<f32>,
    /// Tokens until each ends, where the slots take them in that order: entry i is its own length
    /// after the end of entry i - slots.
    ends: Vec<f32>,
    total: f32,
}

impl Backlog {
    /// The work of a worker with `slots` sequences in a step.
    pub fn new(slots: u32, remaining: impl IntoIterator<Item = f32>) -> Backlog {
        let mut sorted: Vec<f32> = remaining.into_iter().filter(|r| r.is_finite()).collect();
        sorted.sort_unstable_by(f32::total_cmp);
        let mut backlog = Backlog { slots: slots.max(1) as usize, sorted, ..Backlog::default() };
        backlog.update(0);
        backlog
    }

    /// Adds a job of `size` tokens.
    pub fn add(&mut self, size: f32) {
        let at = self.before(size);
        self.sorted.insert(at, size);
        self.update(at);
    }

    /// Computes the ends from entry `from` on.
    fn update(&mut self, from: usize) {
        self.ends.truncate(from);
        for at in from..self.sorted.len() {
            let begin = at.checked_sub(self.slots).map_or(0.0, |freed| self.ends[freed]);
            self.ends.push(begin + self.sorted[at]);
        }
        self.total = self.sorted.iter().sum();
    }

    /// Number of requests that rank before a job of `size` tokens.
    fn before(&self, size: f32) -> usize {
        self.sorted.partition_point(|&remaining| remaining <= size)
    }

    /// Tokens until a job of `size` tokens can run; 0 where a slot is free, or where a request that
    /// ranks behind the job would be preempted.
    pub fn wait(&self, size: f32, order: Order) -> f32 {
        let before = match order {
            Order::Sprpt => self.before(size),
            Order::Fcfs => self.sorted.len(),
        };
        before.checked_sub(self.slots).map_or(0.0, |freed| self.ends[freed])
    }

    /// True if every slot is taken.
    pub fn is_full(&self) -> bool {
        self.sorted.len() >= self.slots
    }

    /// Number of requests.
    pub fn active(&self) -> usize {
        self.sorted.len()
    }

    /// Sum of the remaining tokens.
    pub fn total(&self) -> f32 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_slot_beats_a_small_sum() {
        let roomy = Backlog::new(4, [400.0, 400.0, 400.0]);
        let short = Backlog::new(1, [5.0]);
        assert_eq!(roomy.wait(90.0, Order::Sprpt), 0.0);
        assert_eq!(short.wait(90.0, Order::Sprpt), 5.0);
        assert!(!roomy.is_full() && short.is_full() && roomy.total() > short.total());
    }

    #[test]
    fn only_work_that_ranks_before_a_job_delays_it() {
        let backlog = Backlog::new(1, [300.0, 20.0, 10.0]);
        assert_eq!(backlog.wait(5.0, Order::Sprpt), 0.0, "preempts");
        assert_eq!(backlog.wait(15.0, Order::Sprpt), 10.0);
        assert_eq!(backlog.wait(100.0, Order::Sprpt), 30.0);
        assert_eq!(backlog.wait(5.0, Order::Fcfs), 330.0);
    }

    #[test]
    fn slots_share_the_work_as_a_list_schedule() {
        // Two slots: 10 and 20 begin; 30 follows 10, 40 follows 20.
        let backlog = Backlog::new(2, [40.0, 10.0, 30.0, 20.0]);
        assert_eq!(backlog.wait(25.0, Order::Sprpt), 10.0, "after the first of two");
        assert_eq!(backlog.wait(35.0, Order::Sprpt), 20.0);
        assert_eq!(backlog.wait(99.0, Order::Sprpt), 40.0, "10 + 30");
    }

    #[test]
    fn a_list_schedule_is_that_of_an_event_by_event_simulation() {
        let mut state = 7u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for _ in 0..300 {
            let slots = 1 + random(6);
            let jobs: Vec<f32> = (0..random(30)).map(|_| 1.0 + random(90) as f32).collect();
            let size = 1.0 + random(90) as f32;
            let mut free = vec![0.0f32; slots as usize];
            let mut before: Vec<f32> = jobs.iter().copied().filter(|&r| r <= size).collect();
            before.sort_by(f32::total_cmp);
            for job in before {
                free.sort_by(f32::total_cmp);
                free[0] += job;
            }
            free.sort_by(f32::total_cmp);
            let backlog = Backlog::new(slots, jobs.clone());
            assert_eq!(backlog.wait(size, Order::Sprpt), free[0], "{jobs:?} {slots} {size}");
        }
    }

    #[test]
    fn adding_is_building_again() {
        let mut grown = Backlog::new(3, []);
        let all = [70.0, 5.0, 40.0, 5.0, 12.0, 90.0];
        all.iter().for_each(|&size| grown.add(size));
        assert_eq!(grown, Backlog::new(3, all));
    }
}
