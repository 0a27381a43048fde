//! Queued work: a graph of operations. A stream is nothing but a dependency on the operation queued
//! before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::state::Handle;
use crate::memory::Allocation;
use crate::ptx::program::Kernel;

/// Number of an operation, ascending.
pub(crate) type Id = u64;

/// A launch waiting to run.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) params: Vec<u8>,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) cooperative: bool,
    /// It may begin before its predecessor has ended.
    pub(crate) overlaps: bool,
}

/// Host memory of a copy.
#[derive(Clone)]
pub(crate) enum HostBytes {
    /// Read or written when the copy runs.
    At(usize),
    /// Taken when the copy was queued, as a driver does with pageable memory.
    Taken(Arc<Vec<u8>>),
}

/// Work of an operation.
#[derive(Clone)]
pub(crate) enum Work {
    Launch(Launch),
    ToDevice {
        from: HostBytes,
        to: u64,
        bytes: usize,
    },
    ToHost {
        from: u64,
        to: usize,
        bytes: usize,
    },
    Within {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// `pattern` is 1, 2 or 4 bytes.
    Fill {
        to: u64,
        pattern: Vec<u8>,
        count: usize,
    },
    Record {
        event: Handle,
        instance: u64,
    },
    Born(Arc<Allocation>),
    Free(Arc<Allocation>),
    /// Waits until the word at an address meets the condition of `flags`.
    Wait {
        at: u64,
        value: u64,
        flags: u32,
        wide: bool,
    },
    /// A stream's write of a word; with `fences`, all copies before it are seen first.
    Store {
        at: u64,
        value: u64,
        wide: bool,
        fences: bool,
    },
    Call {
        function: usize,
        argument: usize,
    },
    /// A meeting point of several others.
    Join,
}

struct Operation {
    work: Work,
    after: Vec<Id>,
}

/// All operations that have not run.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<Id, Operation>,
    /// Host functions in progress: they run without the lock.
    running: HashSet<Id>,
    next: Id,
    /// Last operation of each stream; 0 is the legacy stream.
    pub(crate) last: HashMap<Handle, Id>,
}

impl Queue {
    pub(crate) fn push(&mut self, work: Work, after: Vec<Id>) -> Id {
        self.next += 1;
        let after = after.into_iter().filter(|id| !self.is_done(*id)).collect();
        self.waiting.insert(self.next, Operation { work, after });
        self.next
    }

    pub(crate) fn is_done(&self, id: Id) -> bool {
        !self.waiting.contains_key(&id) && !self.running.contains(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    fn may_run(&self, operation: &Operation) -> bool {
        operation.after.iter().all(|&id| self.is_done(id))
    }

    /// Operations whose predecessors are done.
    pub(crate) fn ready(&self) -> Vec<Id> {
        self.waiting
            .iter()
            .filter(|(_, operation)| self.may_run(operation))
            .map(|(&id, _)| id)
            .collect()
    }

    /// Of those that `goal` needs, itself included, the ones whose predecessors are done.
    pub(crate) fn ready_for(&self, goal: Id) -> Vec<Id> {
        let mut seen = HashSet::new();
        let mut stack = vec![goal];
        let mut ready = Vec::new();
        while let Some(id) = stack.pop() {
            let Some(operation) = self.waiting.get(&id).filter(|_| seen.insert(id)) else {
                continue;
            };
            if self.may_run(operation) {
                ready.push(id);
            }
            stack.extend(&operation.after);
        }
        ready.sort_unstable();
        ready
    }

    pub(crate) fn work(&self, id: Id) -> Option<&Work> {
        self.waiting.get(&id).map(|operation| &operation.work)
    }

    /// Takes an operation out to run it; [`Queue::finish`] must follow.
    pub(crate) fn start(&mut self, id: Id) -> Option<Work> {
        let operation = self.waiting.remove(&id)?;
        self.running.insert(id);
        Some(operation.work)
    }

    pub(crate) fn finish(&mut self, id: Id) {
        self.running.remove(&id);
    }

    /// Drops all that waits: the context is broken.
    pub(crate) fn abandon(&mut self) {
        self.waiting.clear();
    }
}
