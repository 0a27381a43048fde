//! The policy of a running engine, which its callers may change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trail_scheduler::policies::{Needs, PolicyKind};

/// Probe, predictor and recorded predictions of an engine, which its policies can use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Provided {
    pub(super) probe: bool,
    pub(super) predictor: bool,
    /// Requests bring recorded predictions and true lengths.
    pub(super) replays: bool,
}

impl Provided {
    /// Refuses a policy that needs what is not there.
    pub(super) fn check(self, policy: PolicyKind) -> Result<(), String> {
        let name = policy.name();
        match policy.needs() {
            _ if self.replays => Ok(()),
            Needs::Probe if !self.probe => Err(format!(
                "policy {name} needs a probe trained for this model: give it with --probe FILE, put \
                 it beside the model as probe.safetensors, train one (trail-rt probe), or choose \
                 --policy fcfs",
            )),
            Needs::Predictor if !self.predictor => Err(format!(
                "policy {name} needs a prompt-only predictor: choose one with --length-predictor, \
                 put predictor.safetensors beside the model, or choose --policy fcfs",
            )),
            _ => Ok(()),
        }
    }
}

/// The policy, shared by an engine and its thread.
pub(super) struct PolicySwitch {
    provided: Provided,
    kind: Mutex<PolicyKind>,
    is_changed: AtomicBool,
}

impl PolicySwitch {
    pub(super) fn new(kind: PolicyKind, provided: Provided) -> Arc<PolicySwitch> {
        Arc::new(PolicySwitch {
            provided,
            kind: Mutex::new(kind),
            is_changed: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PolicyKind> {
        self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The policy, as last set.
    pub(super) fn kind(&self) -> PolicyKind {
        *self.lock()
    }

    /// Refuses a policy that the engine lacks something for.
    pub(super) fn check(&self, kind: PolicyKind) -> Result<(), String> {
        // A served request has no true length.
        if kind.needs() == Needs::TrueLengths && !self.provided.replays {
            return Err(format!("policy {} needs the true lengths of recorded runs", kind.name()));
        }
        self.provided.check(kind)
    }

    /// Sets the policy from the next step on.
    pub(super) fn set(&self, kind: PolicyKind) -> Result<(), String> {
        self.check(kind)?;
        *self.lock() = kind;
        self.is_changed.store(true, Ordering::Release);
        Ok(())
    }

    /// The policy, if it was set since the last call. For the engine's thread, which waits at most
    /// for a copy.
    pub(super) fn take(&self) -> Option<PolicyKind> {
        let is_changed = self.is_changed.load(Ordering::Relaxed)
            && self.is_changed.swap(false, Ordering::Acquire);
        is_changed.then(|| self.kind())
    }
}
