//! The probe: remaining tokens from activations.

use std::ffi::c_char;
use std::sync::Arc;

use trail_probe::{Beside, Partials, Probe, Rows};

use crate::pointers;
use crate::status::{Failure, TrailStatus, guard, value};

/// Rows of a pass.
const PASS_ROWS: usize = 96;

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
        // SAFETY: as the header asks for.
        let remaining = unsafe { pointers::room("remaining", remaining, num_rows) }?;
        predict(probe, activations, generated, remaining);
        Ok(())
    })
}

fn predict(probe: &Probe, activations: &[f32], generated: &[u32], remaining: &mut [f32]) {
    let (head, d) = (&probe.head, probe.head.d());
    let partials = Partials::new(head, remaining.len().min(PASS_ROWS));
    let mut p = vec![0.0; remaining.len().min(PASS_ROWS) * head.bins()];
    let passes = activations.chunks(PASS_ROWS * d).zip(remaining.chunks_mut(PASS_ROWS));
    for (pass, (activations, remaining)) in passes.enumerate() {
        let beside = |row: usize| Beside {
            generated: generated.get(pass * PASS_ROWS + row).copied().unwrap_or(1),
            prompt: None,
        };
        let p = &mut p[..remaining.len() * head.bins()];
        head.forward(Rows { activations, beside: &beside }, remaining.len(), &partials, p);
        for (to, p) in remaining.iter_mut().zip(p.chunks_exact(head.bins())) {
            *to = probe.bins.expected(p);
        }
    }
}
