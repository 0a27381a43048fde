//! The probe: remaining tokens from activations.

use std::ffi::c_char;
use std::sync::Arc;

use trail_probe::{Probe, non_finite_row};

use crate::pointers;
use crate::status::{Failure, TrailStatus, guard, value};

/// A trained probe. Any number of threads may call its functions at once.
pub struct TrailProbe {
    pub(crate) probe: Arc<Probe>,
}

/// Reads a probe's file; `trail_probe_close` ends it. A probe that reads the prompt is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_probe_open(
    path: *const c_char,
    probe: *mut *mut TrailProbe,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let path = unsafe { pointers::text("path", path) }?;
        let read = Probe::open(path).map_err(Failure::model)?;
        if read.head.inputs().prompt {
            return Err(Failure::model(format!(
                "{path} reads the prompt beside the activation: train one with --inputs activation"
            )));
        }
        // SAFETY: as the header asks for.
        unsafe { pointers::give("probe", probe, TrailProbe { probe: Arc::new(read) }) }
    })
}

/// Ends a probe. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_probe_close(probe: *mut TrailProbe) {
    guard(|| {
        // SAFETY: as the header asks for.
        unsafe { pointers::close(probe) };
        Ok(())
    });
}

/// Width of the activations; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_probe_width(probe: *const TrailProbe) -> usize {
    // SAFETY: as the header asks for.
    value(0, || Ok(unsafe { pointers::reference("probe", probe) }?.probe.head.d()))
}

/// Writes the expected remaining tokens `remaining` `[num_rows]` of each row of `activations`
/// `[num_rows, width]` alone. `generated` `[num_rows]` are the tokens of the answer so far; NULL
/// where the probe does not read them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_probe_predict(
    probe: *const TrailProbe,
    activations: *const f32,
    num_rows: usize,
    generated: *const u32,
    remaining: *mut f32,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let probe = &*unsafe { pointers::reference("probe", probe) }?.probe;
        let d = probe.head.d();
        let values = num_rows.saturating_mul(d);
        // SAFETY: as the header asks for.
        let activations = unsafe { pointers::slice("activations", activations, values) }?;
        let has_age = !generated.is_null();
        if probe.head.inputs().age && !has_age {
            return Err(Failure::argument("the probe reads the age: give generated, by row"));
        }
        let rows = if has_age { num_rows } else { 0 };
        // SAFETY: as the header asks for.
        let generated = unsafe { pointers::slice("generated", generated, rows) }?;
        check_finite(activations, d)?;
        let all = probe.head.distributions(activations, generated, None);
        let expected = all.chunks_exact(probe.bins.count()).map(|p| probe.bins.expected(p));
        let expected: Vec<f32> = expected.collect();
        // SAFETY: as the header asks for.
        unsafe { pointers::write_all("remaining", remaining, &expected) }
    })
}

/// Refuses activations `[rows, d]` that are no numbers.
pub(crate) fn check_finite(activations: &[f32], d: usize) -> Result<(), Failure> {
    match non_finite_row(activations, d) {
        Some(row) => {
            let why = format!("row {row} of the activations has NaN or infinity");
            Err(Failure::argument(why))
        }
        None => Ok(()),
    }
}
