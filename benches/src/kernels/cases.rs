//! One op with one shape, and the check that repeated launches agree.

use std::error::Error;

use trail_runtime::cuda::plan::LaunchPlan;

use super::memory::Memory;
use super::timer::{Timer, Timing};

/// One op with one shape.
pub trait Case {
    /// Name of the op within a step.
    fn op(&self) -> &'static str;

    /// The op's launches, in order.
    fn launches(&self) -> Vec<LaunchPlan>;

    /// Rows of the step.
    fn rows(&self) -> usize;

    /// Tokens in the KV cache: before the chunk for prefill attention, with the new row for decode
    /// attention.
    fn context(&self) -> Option<usize> {
        None
    }

    /// Allocates inputs and outputs on the device.
    fn prepare(&self, memory: &Memory) -> Result<Box<dyn Prepared + '_>, Box<dyn Error>>;
}

/// A case with its buffers on the device.
pub trait Prepared {
    /// Makes launch number `i`; the copies of the inputs rotate.
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>>;

    /// Returns the output of launch 0 into zeroed buffers, as bits of f32.
    fn result(&mut self, memory: &Memory) -> Result<Vec<u32>, Box<dyn Error>>;
}

/// Upper bounds of shapes; larger ones shrink to them.
#[derive(Clone, Copy)]
pub struct MaxShape {
    /// Rows of a step.
    pub rows: usize,
    /// Tokens of a request.
    pub context: usize,
}

/// Times a case, and checks that the same inputs give the same finite outputs before and after.
pub fn measure(case: &dyn Case, memory: &Memory, timer: &Timer) -> Result<Timing, Box<dyn Error>> {
    let plan = case.launches()[0];
    let mut prepared = case.prepare(memory)?;
    let before = prepared.result(memory)?;
    let timing = timer.time(|i| prepared.launch(memory, i))?;
    let after = prepared.result(memory)?;
    if before != after {
        return Err(format!("{}: {plan}: results differ between launches", case.op()).into());
    }
    let finite = before.iter().all(|&bits| f32::from_bits(bits).is_finite());
    if !finite || before.iter().all(|&bits| bits << 1 == 0) {
        return Err(format!("{}: {plan}: no sensible result", case.op()).into());
    }
    Ok(timing)
}
