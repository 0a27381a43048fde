//! Estimates of answers, token by token: the probe with its filter.

use std::sync::Arc;

use trail_probe::{Beside, CheckedTracker, Estimate, Partials, Probe, Rows};

use crate::pointers;
use crate::probe::{TrailProbe, check_finite};
use crate::status::{Failure, TrailStatus, guard};

/// Expectation of the rest of an answer, tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TrailEstimate {
    /// The expectation.
    pub remaining: f32,
    /// The 10 % quantile.
    pub p10: f32,
    /// The median.
    pub p50: f32,
    /// The 90 % quantile.
    pub p90: f32,
}

/// A probe with its filter, for some answers at once. One thread at a time calls its functions.
pub struct TrailTracker {
    probe: Arc<Probe>,
    tracker: CheckedTracker,
    partials: Partials,
    probabilities: Vec<f32>,
}

/// Creates a tracker of `max_requests` places for answers; `trail_tracker_close` ends it. The probe
/// may be closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_tracker_open(
    probe: *const TrailProbe,
    max_requests: usize,
    tracker: *mut *mut TrailTracker,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let probe = unsafe { pointers::reference("probe", probe) }?.probe.clone();
        let places = CheckedTracker::new(probe.filter(), max_requests);
        let new = TrailTracker {
            tracker: places.map_err(Failure::argument)?,
            partials: Partials::new(&probe.head, 1),
            probabilities: vec![0.0; probe.head.bins()],
            probe,
        };
        // SAFETY: as the header asks for.
        unsafe { pointers::give("tracker", tracker, new) }
    })
}

/// Ends a tracker. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_tracker_close(tracker: *mut TrailTracker) {
    guard(|| {
        // SAFETY: as the header asks for.
        unsafe { pointers::close(tracker) };
        Ok(())
    });
}

/// Takes in the activation `[width]` after `generated` tokens of the answer at `place`, 0 for the
/// mean over its prompt's, and writes what is expected then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_tracker_observe(
    tracker: *mut TrailTracker,
    place: usize,
    generated: u32,
    activation: *const f32,
    estimate: *mut TrailEstimate,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let tracker = unsafe { pointers::exclusive("tracker", tracker) }?;
        let width = tracker.probe.head.d();
        // SAFETY: as the header asks for.
        let activation = unsafe { pointers::slice("activation", activation, width) }?;
        pointers::check("estimate", estimate)?;
        let observed = tracker.observe(place, generated, activation)?;
        // SAFETY: as the header asks for.
        unsafe { pointers::write("estimate", estimate, observed) }
    })
}

/// Makes `place` free for another answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_tracker_forget(
    tracker: *mut TrailTracker,
    place: usize,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let tracker = unsafe { pointers::exclusive("tracker", tracker) }?;
        tracker.tracker.forget(place).map_err(Failure::argument)
    })
}

impl TrailTracker {
    fn observe(
        &mut self,
        place: usize,
        generated: u32,
        activations: &[f32],
    ) -> Result<TrailEstimate, Failure> {
        check_finite(activations, self.probe.head.d())?;
        let beside = |_: usize| Beside { generated, prompt: None };
        let of = Rows { activations, beside: &beside };
        self.probe.head.forward(of, 1, &self.partials, &mut self.probabilities);
        let estimate = self.tracker.observe(place, generated, &self.probabilities);
        let Estimate { remaining, quantiles: [p10, p50, p90], .. } =
            estimate.map_err(Failure::argument)?;
        Ok(TrailEstimate { remaining, p10, p50, p90 })
    }
}
