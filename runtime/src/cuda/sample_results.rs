//! Sampled tokens on their way back: the sampler writes each row into mapped memory and stamps it;
//! the host polls the stamps.
//!
//! No copy and no kernel stands between the sampler and the host. The rows of a step are
//! overwritten two steps later, when the host has read them, since no more than two steps are in
//! flight.

use super::device::Device;
use super::error::CudaError;
use super::memory::PinnedBuffer;
use super::step_metadata::PARITIES;
use std::mem::offset_of;
use trail_ptx::DevicePtr;
use trail_ptx::params::RowSampled;

/// `[2 parities][rows]` sampled tokens.
pub(super) struct SampleResults {
    memory: PinnedBuffer,
    rows: usize,
}

impl SampleResults {
    pub(super) fn new(device: &Device, rows: usize) -> Result<SampleResults, CudaError> {
        let bytes = PARITIES * rows * size_of::<RowSampled>();
        // No step has number 0.
        let memory = device.alloc_pinned_zeros(bytes, "sampled tokens")?;
        Ok(SampleResults { memory, rows })
    }

    /// Where the steps of `parity` write.
    pub(super) fn at(&self, parity: usize) -> DevicePtr<RowSampled> {
        self.memory.device_ptr().add(parity * self.rows)
    }

    /// Row `row` of the step numbered `number`, if it is there.
    pub(super) fn take(&self, number: u64, row: usize) -> Option<RowSampled> {
        assert!(row < self.rows);
        let parity = (number % PARITIES as u64) as usize;
        let at = (parity * self.rows + row) * size_of::<RowSampled>();
        let step_seq = self.memory.load(at + offset_of!(RowSampled, step_seq));
        // The device stored the step_seq after the rest, and writes the row again only after the
        // host has taken this one.
        (step_seq == number as u32).then(|| self.memory.read(at))
    }
}
