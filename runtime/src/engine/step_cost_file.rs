//! Step costs from a file, and the work of a batch.

use std::path::Path;

use trail_platform::read::read_text;
use trail_scheduler::{StepCost, StepWork};

use crate::backend::Batch;

/// Largest file read, MiB.
const MAX_MIB: u64 = 1;

/// Reads a JSON object with the four coefficients from the file at `path`; other members are
/// ignored.
pub fn load_step_cost(path: &Path) -> Result<StepCost, String> {
    let name = path.display();
    let text = read_text(path, MAX_MIB)
        .map_err(|error| format!("cannot read step costs from {name}: {error}"))?;
    StepCost::parse(&text).map_err(|why| {
        format!("{name} does not hold step costs: {why}; make one with bench steps --out FILE")
    })
}

/// The work of `batch`.
pub(super) fn work_of(batch: &Batch) -> StepWork {
    let mut work = StepWork::default();
    for segment in &batch.segments {
        work.add(segment.start, segment.len, segment.logits);
    }
    work
}
