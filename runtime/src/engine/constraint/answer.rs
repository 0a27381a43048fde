//! One answer under a constraint, shared by the engine's thread, the workers and the samplers.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Constraint, ConstraintFault, Matcher};
use crate::backend::{Allowed, AllowedTokens, TokenMask};

/// Forced tokens for which an answer reserves memory.
const RESERVED_TOKENS: usize = 64;

/// An answer and the tokens that may follow. Tokens are taken by the engine's thread; all else is
/// computed by the thread that needs it first.
pub(in crate::engine) struct ConstrainedAnswer {
    known: Mutex<Known>,
    /// Signalled when the token in `known` was accepted.
    accepted: Condvar,
    matching: Mutex<Matching>,
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
    fault: Option<ConstraintFault>,
}

/// Locked while the matcher runs.
struct Matching {
    matcher: Box<dyn Matcher>,
    /// Tokens that may come after those that are forced; `None` until computed.
    mask: Option<Arc<TokenMask>>,
    forced: Vec<u32>,
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
        let mut matcher = constraint.matcher(ends);
        let mut forced = Vec::with_capacity(RESERVED_TOKENS);
        tokens.iter().try_for_each(|&token| matcher.accept(token))?;
        matcher.force(&mut forced)?;
        let mut queue = VecDeque::with_capacity(RESERVED_TOKENS);
        queue.extend(forced.drain(..));
        let known = Known { generated: tokens.len(), forced: queue, pending: None, fault: None };
        let answer = ConstrainedAnswer {
            known: Mutex::new(known),
            accepted: Condvar::new(),
            matching: Mutex::new(Matching { matcher, mask: None, forced }),
            is_queued: AtomicBool::new(false),
        };
        answer.compute_mask();
        let fault = lock(&answer.known).fault.clone();
        fault.map_or(Ok(answer), Err)
    }

    /// Takes `token`, the next one of the answer. Returns true if the answer is to enter a queue of
    /// the workers, which it is not in.
    pub(super) fn take(&self, token: u32) -> bool {
        let mut known = lock(&self.known);
        known.generated += 1;
        if known.forced.pop_front().is_some() {
            return false;
        }
        known.pending = Some(token);
        drop(known);
        !self.is_queued.swap(true, Ordering::AcqRel)
    }

    /// Records that the answer left the workers' queues.
    pub(super) fn leave_queue(&self) {
        self.is_queued.store(false, Ordering::Release);
    }

    /// Lets the matcher take the token that is pending, if any, and those that it forces.
    pub(super) fn accept(&self) {
        let mut matching = lock(&self.matching);
        let Some(token) = lock(&self.known).pending else { return };
        let Matching { matcher, mask, forced } = &mut *matching;
        *mask = None;
        forced.clear();
        let result = caught(|| {
            matcher.accept(token)?;
            matcher.force(forced)
        });
        let mut known = lock(&self.known);
        known.forced.extend(forced.drain(..));
        known.pending = None;
        known.fault = known.fault.take().or(result.err());
        self.accepted.notify_all();
    }

    /// Computes the mask, unless it is there.
    pub(super) fn compute_mask(&self) {
        self.mask();
    }

    /// The mask of the tokens after the forced ones; `None` after a fault.
    fn mask(&self) -> Option<Arc<TokenMask>> {
        let mut matching = lock(&self.matching);
        if matching.mask.is_none() && lock(&self.known).fault.is_none() {
            match caught(|| matching.matcher.mask()) {
                Ok(mask) => matching.mask = Some(Arc::new(mask)),
                Err(fault) => lock(&self.known).fault = Some(fault),
            }
        }
        matching.mask.clone()
    }

    /// Appends up to `max` tokens that must come next to `tokens`, which has room; returns their
    /// number. Waits until the last token was accepted.
    pub(in crate::engine) fn append_forced(&self, max: usize, tokens: &mut Vec<u32>) -> usize {
        let mut known = lock(&self.known);
        while known.pending.is_some() {
            known = self.accepted.wait(known).unwrap_or_else(PoisonError::into_inner);
        }
        let before = tokens.len();
        tokens.extend(known.forced.iter().take(max));
        tokens.len() - before
    }

    /// True if the matcher failed: the answer must end.
    pub(in crate::engine) fn is_faulty(&self) -> bool {
        lock(&self.known).fault.is_some()
    }
}

impl AllowedTokens for ConstrainedAnswer {
    fn after(&self, generated: usize) -> Allowed {
        self.accept();
        let known = lock(&self.known);
        // The answer that is faulty ends: its token is not sent.
        let at = generated.saturating_sub(known.generated);
        if let Some(&token) = known.forced.get(at) {
            return Allowed::Only(token);
        }
        drop(known);
        self.mask().map_or(Allowed::Any, Allowed::Mask)
    }
}

/// Runs a matcher; its panic is a fault.
fn caught<T>(run: impl FnOnce() -> Result<T, ConstraintFault>) -> Result<T, ConstraintFault> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(ConstraintFault("the matcher panicked".into())))
}
