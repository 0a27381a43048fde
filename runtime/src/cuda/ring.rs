//! Choices on their way back: the sampler writes each row into mapped memory and stamps it; the host polls the stamps.
//!
//! No copy and no kernel stands between the sampler and the host. The rows of a step are written anew two steps later, when the host has
//! long read them, since no more than two steps are under way.

use super::{CudaError, Device, PinnedBuffer};
use cudarc::driver::sys::CUdeviceptr;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use trail_ptx::params::RowSampled;

const PARITIES: usize = 2;

/// `[2 parities][rows]` choices.
pub(super) struct Results {
    memory: PinnedBuffer,
    rows: usize,
}

impl Results {
    pub(super) fn new(device: &Device, rows: usize) -> Result<Results, CudaError> {
        let bytes = PARITIES * rows * size_of::<RowSampled>();
        let memory = device.alloc_pinned(bytes, "sampled tokens")?;
        // SAFETY: the memory is that large, and nobody else knows it. No step has number 0.
        unsafe { memory.as_ptr().write_bytes(0, bytes) };
        Ok(Results { memory, rows })
    }

    /// Where the steps of `parity` write.
    pub(super) fn at(&self, parity: usize) -> CUdeviceptr {
        self.memory.at() + (parity * self.rows * size_of::<RowSampled>()) as u64
    }

    /// Row `row` of the step numbered `number`, if it is there.
    pub(super) fn take(&self, number: u64, row: usize) -> Option<RowSampled> {
        assert!(row < self.rows);
        let parity = (number % PARITIES as u64) as usize;
        let first = self.memory.as_ptr().cast::<RowSampled>();
        // SAFETY: within the memory, which is aligned to a page.
        let row = unsafe { first.add(parity * self.rows + row) };
        // SAFETY: the stamp is a word in memory that outlives this call; the device writes it whole.
        let stamp =
            unsafe { AtomicU32::from_ptr(row.byte_add(offset_of!(RowSampled, stamp)).cast()) };
        let is_there = stamp.load(Ordering::Acquire) == number as u32;
        // SAFETY: the device stored the stamp behind the rest, and writes the row again only after the host has taken this one.
        is_there.then(|| unsafe { row.read() })
    }
}
