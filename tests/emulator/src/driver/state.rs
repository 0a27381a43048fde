//! Everything that the API functions share, behind one lock. Kernels run under it too: nothing is
//! allocated or freed meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use super::config::Config;
use super::event::Event;
use super::graph::{Capture, Graph};
use super::module::{Function, Module};
use super::posted::Posted;
use super::queue::{Id, Queue};
use super::stream::Stream;
use super::{Answer, CURRENT, error};
use crate::memory::Memory;
use crate::report::Finding;

/// A handle as the caller sees it: never null, never a small number.
pub(crate) type Handle = usize;

/// The emulator's state.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) initialised: bool,
    /// Reference count of the primary context.
    pub(crate) retained: usize,
    pub(crate) context: Handle,
    pub(crate) memory: Memory,
    pub(crate) queue: Queue,
    pub(crate) posted: Posted,
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    pub(crate) modules: HashMap<Handle, Module>,
    pub(crate) functions: HashMap<Handle, Function>,
    pub(crate) graphs: HashMap<Handle, Arc<Mutex<Graph>>>,
    pub(crate) executables: HashMap<Handle, Graph>,
    pub(crate) captures: HashMap<u64, Capture>,
    pub(crate) findings: Vec<Finding>,
    /// The error that ended the context: every later call gives it.
    pub(crate) sticky: Option<u32>,
    /// The operation that never ends.
    pub(crate) hung: Option<Id>,
    pub(crate) random: u64,
    pub(crate) executed: u64,
    pub(crate) launches: u64,
    /// The first launch that may still be at work when one begins that overlaps.
    pub(crate) unfinished: u64,
    /// Stream writes that were done while a launch filled the chip.
    pub(crate) writes_beside: u64,
    next_handle: Handle,
}

/// Memory that a context takes before the first allocation, bytes.
pub(crate) const RESERVED: u64 = 512 << 20;
/// Findings kept in memory.
const KEPT: usize = 1000;

static STATE: OnceLock<Mutex<State>> = OnceLock::new();
/// Work was queued: the background thread looks after it.
pub(crate) static QUEUED: Condvar = Condvar::new();

/// Locks the state.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE
        .get_or_init(|| Mutex::new(State::new()))
        .lock()
        .unwrap_or_else(|broken| broken.into_inner())
}

/// Locks the state for a call that needs a current, healthy context.
pub(crate) fn ready() -> Result<MutexGuard<'static, State>, u32> {
    let state = lock();
    state.check()?;
    Ok(state)
}

impl State {
    fn new() -> State {
        let config = Config::from_environment();
        let random = config.seed | 1;
        State {
            config,
            initialised: false,
            retained: 0,
            context: 0,
            memory: Memory::default(),
            queue: Queue::default(),
            posted: Posted::default(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            captures: HashMap::new(),
            findings: Vec::new(),
            sticky: None,
            hung: None,
            random,
            executed: 0,
            launches: 0,
            unfinished: 0,
            writes_beside: 0,
            next_handle: 0x7E00_0000_0000,
        }
    }

    /// Initialised, a context current, no sticky error, device not lost.
    pub(crate) fn check(&self) -> Answer {
        if !self.initialised {
            return Err(error::NOT_INITIALIZED);
        }
        self.health()?;
        if CURRENT.get() == 0 || CURRENT.get() != self.context {
            return Err(error::INVALID_CONTEXT);
        }
        Ok(())
    }

    /// Device memory that is free: without allocations, graphs, modules, and what a context takes.
    pub(crate) fn free_bytes(&self) -> u64 {
        let modules: u64 = self.modules.values().map(|module| module.bytes).sum();
        let used = RESERVED + self.memory.used() + self.graph_bytes() + modules;
        self.config.memory.saturating_sub(used)
    }

    /// Drops all work that waits: the context is broken, or the device lost.
    pub(crate) fn abandon(&mut self) {
        self.queue.abandon();
        // The caller may free its memory from now on.
        self.posted.land_all();
    }

    /// The error of a lost device or a broken context.
    pub(crate) fn health(&self) -> Answer {
        self.config.lost.or(self.sticky).map_or(Ok(()), Err)
    }

    pub(crate) fn handle(&mut self) -> Handle {
        self.next_handle += 0x40;
        self.next_handle
    }

    pub(crate) fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Notes a finding and says it on stderr.
    pub(crate) fn report(&mut self, finding: Finding) {
        eprintln!("trail-cuda-emulator: {finding}");
        if self.findings.len() < KEPT {
            self.findings.push(finding);
        }
    }

    /// Destroys the context: what is left is a leak.
    pub(crate) fn destroy_context(&mut self) {
        self.report_leaks();
        self.forget_context();
    }

    /// Destroys the context, whatever is left.
    pub(crate) fn forget_context(&mut self) {
        self.queue = Queue::default();
        self.streams.clear();
        self.events.clear();
        self.modules.clear();
        self.functions.clear();
        self.graphs.clear();
        self.executables.clear();
        self.captures.clear();
        self.memory = Memory::default();
        self.sticky = None;
        self.context = 0;
        self.retained = 0;
    }

    fn report_leaks(&mut self) {
        for allocation in self.memory.leaks() {
            self.report(Finding::host(
                crate::report::Kind::Leak,
                format!("{allocation} was not freed before its context went"),
            ));
        }
    }
}
