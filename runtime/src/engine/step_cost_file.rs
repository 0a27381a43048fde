//! Step costs from a file, and the work of a batch.

use std::path::Path;

use trail_scheduler::{StepCost, StepWork};

use crate::backend::Batch;

/// Reads a JSON object with the four coefficients from the file at `path`; other members are
/// ignored.
pub fn load_step_cost(path: &Path) -> Result<StepCost, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
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
