//! One answer under a constraint, shared by the engine's thread, the workers and the samplers.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Constraint, ConstraintFault, Matcher};
use crate::backend::{Allowed, AllowedTokens, TokenMask};

/// Forced tokens for which an answer reserves memory.
const RESERVED_TOKENS: usize = 64;

/// An answer and the tokens that may follow. The engine's thread appends tokens, a worker computes
/// the tokens that may follow, and the samplers wait for them.
pub(in crate::engine) struct ConstrainedAnswer {
    known: Mutex<Known>,
    /// Signalled when a worker has changed `known`.
    changed: Condvar,
    /// Used by one worker at a time.
    matcher: Mutex<Box<dyn Matcher>>,
    /// True while it is in a queue of the workers.
    is_queued: AtomicBool,
}

/// Locked for moments only.
struct Known {
    /// Tokens of the answer before those of `forced`.
    generated: usize,
    /// Tokens that must come next. The matcher has taken them.
    forced: VecDeque<u32>,
    /// The last token of the answer, which the matcher has not taken.
    pending: Option<u32>,
    /// Tokens that may come after those that are forced; `None` until computed.
    mask: Option<Arc<TokenMask>>,
    fault: Option<ConstraintFault>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values are sound between statements; a panic of a matcher is caught, and a fault.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConstrainedAnswer {
    /// An answer that begins with `tokens`. Computes the tokens that may follow.
    pub(in crate::engine) fn new(
        constraint: &dyn Constraint,
        ends: &[u32],
        tokens: &[u32],
    ) -> Result<ConstrainedAnswer, ConstraintFault> {
        let mut forced = Vec::new();
        let (matcher, mask) = caught(|| {
            let mut matcher = constraint.matcher(ends);
            tokens.iter().try_for_each(|&token| matcher.accept(token))?;
            matcher.force(&mut forced)?;
            let mask = matcher.mask()?;
            Ok((matcher, mask))
        })?;
        let mut queue = VecDeque::with_capacity(RESERVED_TOKENS.max(forced.len()));
        queue.extend(forced);
        let known = Known {
            generated: tokens.len(),
            forced: queue,
            pending: None,
            mask: Some(Arc::new(mask)),
            fault: None,
        };
        Ok(ConstrainedAnswer {
            known: Mutex::new(known),
            changed: Condvar::new(),
            matcher: Mutex::new(matcher),
            is_queued: AtomicBool::new(false),
        })
    }

    /// Takes `token`, the next one of the answer. Returns true if the answer is to enter a queue of
    /// the workers, which it is not in.
    pub(super) fn take(&self, token: u32) -> bool {
        let mut known = lock(&self.known);
        known.generated += 1;
        if known.forced.pop_front().is_some() {
            return false;
        }
        (known.pending, known.mask) = (Some(token), None);
        drop(known);
        !self.is_queued.swap(true, Ordering::AcqRel)
    }

    /// Records that the answer left the workers' queues.
    pub(super) fn leave_queue(&self) {
        self.is_queued.store(false, Ordering::Release);
    }

    /// Lets the matcher take the token that is pending, if any, and those that it forces.
    pub(super) fn accept(&self) {
        let mut matcher = lock(&self.matcher);
        let Some(token) = lock(&self.known).pending else { return };
        let mut forced = Vec::new();
        let result = caught(|| {
            matcher.accept(token)?;
            matcher.force(&mut forced)
        });
        let mut known = lock(&self.known);
        known.forced.extend(forced);
        known.pending = None;
        known.fault = known.fault.take().or(result.err());
        self.changed.notify_all();
    }

    /// Computes the mask, unless it is there.
    pub(super) fn compute_mask(&self) {
        let mut matcher = lock(&self.matcher);
        let known = lock(&self.known);
        if known.mask.is_some() || known.fault.is_some() {
            return;
        }
        drop(known);
        let mask = caught(|| matcher.mask());
        let mut known = lock(&self.known);
        match mask {
            Ok(mask) => known.mask = Some(Arc::new(mask)),
            Err(fault) => known.fault = Some(fault),
        }
        self.changed.notify_all();
    }

    /// Waits until `is_known`.
    fn wait(&self, is_known: impl Fn(&Known) -> bool) -> MutexGuard<'_, Known> {
        let known = self.changed.wait_while(lock(&self.known), |known| !is_known(known));
        known.unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends up to `max` tokens that must come next to `tokens`, which has room; returns their
    /// number. Waits until the last token was accepted.
    pub(in crate::engine) fn append_forced(&self, max: usize, tokens: &mut Vec<u32>) -> usize {
        let known = self.wait(|known| known.pending.is_none());
        let before = tokens.len();
        tokens.extend(known.forced.iter().take(max));
        tokens.len() - before
    }

    /// The reason for which the answer must end, if it must.
    pub(in crate::engine) fn fault(&self) -> Option<ConstraintFault> {
        lock(&self.known).fault.clone()
    }

    /// True if the answer must end.
    pub(in crate::engine) fn is_faulty(&self) -> bool {
        lock(&self.known).fault.is_some()
    }
}

impl AllowedTokens for ConstrainedAnswer {
    fn after(&self, generated: usize) -> Allowed {
        let forced =
            |known: &Known| known.forced.get(generated.saturating_sub(known.generated)).copied();
        let is_known = |known: &Known| {
            let is_accepted = known.pending.is_none();
            known.fault.is_some()
                || is_accepted && (forced(known).is_some() || known.mask.is_some())
        };
        let known = self.wait(is_known);
        match (&known.fault, forced(&known), &known.mask) {
            // The answer ends: its token is not sent.
            (Some(_), ..) | (None, None, None) => Allowed::Any,
            (None, Some(token), _) => Allowed::Only(token),
            (None, None, Some(mask)) => Allowed::Mask(mask.clone()),
        }
    }
}

/// Runs a matcher; its panic is a fault.
fn caught<T>(run: impl FnOnce() -> Result<T, ConstraintFault>) -> Result<T, ConstraintFault> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(ConstraintFault::Panicked))
}
