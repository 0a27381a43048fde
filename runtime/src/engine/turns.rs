//! Turns of engines that compute on the same cores: one step at a time, by stride scheduling.
//!
//! Each engine has a virtual time, which advances by the duration of its steps over its weight. The
//! next turn is for the engine with the least one of those that have work, so that busy engines get
//! the cores in proportion to their weights. An engine without work counts for nothing, and gains
//! nothing by it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The turns of the engines of a process.
#[derive(Debug, Default)]
pub struct Turns {
    order: Mutex<TurnOrder>,
    changed: Condvar,
}

/// Engines by their virtual times.
#[derive(Debug, Default)]
struct TurnOrder {
    members: Vec<Member>,
    next_id: u64,
    /// Virtual time of the engine that had the last turn.
    now: f64,
    /// True during a turn.
    is_taken: bool,
}

#[derive(Debug)]
struct Member {
    id: u64,
    weight: f64,
    /// Nanoseconds of its steps over its weight.
    virtual_ns: f64,
    /// It has work, and waits for a turn, has one, or will ask for one at once.
    has_work: bool,
}

impl TurnOrder {
    /// Adds an engine without work.
    fn join(&mut self, weight: u32) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let weight = f64::from(weight.max(1));
        self.members.push(Member { id, weight, virtual_ns: self.now, has_work: false });
        id
    }

    fn leave(&mut self, id: u64) {
        self.members.retain(|member| member.id != id);
    }

    fn member(&mut self, id: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    /// Engine `id` asks for a turn. One that had no work begins at the present virtual time.
    fn ask(&mut self, id: u64) {
        let now = self.now;
        if let Some(member) = self.member(id).filter(|member| !member.has_work) {
            member.has_work = true;
            member.virtual_ns = member.virtual_ns.max(now);
        }
    }

    /// Begins the turn of engine `id`, which has asked; false while it is another one's.
    fn begin(&mut self, id: u64) -> bool {
        let with_work = self.members.iter().filter(|member| member.has_work);
        let first = with_work.min_by(|a, b| a.virtual_ns.total_cmp(&b.virtual_ns));
        let Some(first) = first.filter(|first| first.id == id && !self.is_taken) else {
            return false;
        };
        (self.now, self.is_taken) = (first.virtual_ns, true);
        true
    }

    /// Ends the turn of engine `id`, of `cost_ns` nanoseconds. The next one is not another engine's
    /// before this one, if it `has_work`, has had what is due to it.
    fn end(&mut self, id: u64, cost_ns: u64, has_work: bool) {
        self.is_taken = false;
        if let Some(member) = self.member(id) {
            // A turn without a cost would be followed by another one of the same engine.
            member.virtual_ns += cost_ns.max(1) as f64 / member.weight;
            member.has_work = has_work;
        }
    }
}

impl Turns {
    /// Adds an engine of `weight`.
    pub(super) fn join(self: &Arc<Self>, weight: u32) -> TurnTaker {
        TurnTaker { id: self.order().join(weight), turns: self.clone() }
    }

    fn order(&self) -> MutexGuard<'_, TurnOrder> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An engine among those that take turns; leaves them when dropped.
pub(super) struct TurnTaker {
    turns: Arc<Turns>,
    id: u64,
}

impl TurnTaker {
    /// Waits for a turn.
    pub(super) fn take(&self) -> Turn<'_> {
        let mut order = self.turns.order();
        order.ask(self.id);
        while !order.begin(self.id) {
            order = self.turns.changed.wait(order).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { taker: self, begin: Instant::now(), has_work: false }
    }
}

impl Drop for TurnTaker {
    fn drop(&mut self) {
        self.turns.order().leave(self.id);
        self.turns.changed.notify_all();
    }
}

/// The time of one step; ends when dropped, also by unwinding.
pub(super) struct Turn<'a> {
    taker: &'a TurnTaker,
    begin: Instant,
    has_work: bool,
}

impl Turn<'_> {
    /// Ends the turn of an engine that takes the next one at once if it `has_work`.
    pub(super) fn end(mut self, has_work: bool) {
        self.has_work = has_work;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let TurnTaker { turns, id } = self.taker;
        turns.order().end(*id, self.begin.elapsed().as_nanos() as u64, self.has_work);
        turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
