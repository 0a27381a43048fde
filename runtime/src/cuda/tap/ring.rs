//! The ring of two slots: pinned memory, and the state of each slot.

use super::slots::{SLOTS, Slots, slot_of};
use crate::backend::TapRow;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::memory::PinnedBuffer;
use crate::cuda::queue::Queue;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUdeviceptr;
use half::bf16;

/// Bytes between flags: a line each.
const FLAG_BYTES: usize = 128;

/// Width and element type of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Row {
    /// Elements of a row.
    pub(in crate::cuda) width: usize,
    /// Bytes of an element: bf16 activations, or f32 probabilities.
    pub(in crate::cuda) element: usize,
}

/// Pinned memory that the side stream writes, and the state of its slots.
pub(in crate::cuda) struct Ring {
    /// `[SLOTS][rows, width]`, then `[SLOTS]` flags.
    memory: PinnedBuffer,
    row: Row,
    /// Bytes of a slot.
    slot_bytes: usize,
    pub(in crate::cuda) slots: Slots<TapRow>,
}

impl Ring {
    /// Slots of up to `rows` rows.
    pub(in crate::cuda) fn new(device: &Device, rows: usize, row: Row) -> Result<Ring, CudaError> {
        let slot_bytes = (rows * row.width * row.element).next_multiple_of(FLAG_BYTES);
        let bytes = SLOTS * (slot_bytes + FLAG_BYTES);
        let memory = device.alloc_pinned_zeros(bytes, "tapped rows")?;
        Ok(Ring { memory, row, slot_bytes, slots: Slots::new(rows) })
    }

    /// Starts a copy of `rows` rows at `from` into the slot of `parity`. Threads may read the slot
    /// meanwhile: they know that it may change.
    pub(in crate::cuda) fn copy_rows(
        &self,
        queue: &Queue,
        parity: usize,
        rows: usize,
        from: CUdeviceptr,
    ) -> Result<(), DriverError> {
        let (first, bytes) = (parity * self.slot_bytes, rows * self.row.width * self.row.element);
        queue.copy_to_host(&self.memory, first..first + bytes, from)
    }

    /// Starts a copy of the step's number at `number`, a word, to the flag of `parity`.
    pub(in crate::cuda) fn copy_flag(
        &self,
        queue: &Queue,
        parity: usize,
        number: CUdeviceptr,
    ) -> Result<(), DriverError> {
        let at = self.flag_at(parity);
        queue.copy_to_host(&self.memory, at..at + 4, number)
    }

    /// Byte of the memory at which the flag of `parity` is.
    fn flag_at(&self, parity: usize) -> usize {
        SLOTS * self.slot_bytes + parity * FLAG_BYTES
    }

    /// Returns true if the rows of `step` have arrived.
    pub(in crate::cuda) fn is_there(&self, step: u64) -> bool {
        self.memory.load(self.flag_at(slot_of(step))) == step as u32
    }

    /// The rows of `step`, where they are activations. The device may overwrite them: a reader
    /// copies them, and uses the copy only if [`Slots::take`] returns true.
    pub(super) fn activations(&self, step: u64, rows: usize) -> &[bf16] {
        self.elements(step, rows)
    }

    /// The rows of `step`, where they are probabilities; the same holds for them.
    pub(super) fn probabilities(&self, step: u64, rows: usize) -> &[f32] {
        self.elements(step, rows)
    }

    fn elements<T: bytemuck::AnyBitPattern>(&self, step: u64, rows: usize) -> &[T] {
        assert_eq!(size_of::<T>(), self.row.element, "another kind of rows");
        let (first, count) = (slot_of(step) * self.slot_bytes, rows * self.row.width);
        let at = self.memory.byte_at(&(first..first + count * size_of::<T>()));
        // SAFETY: within the slot (`byte_at` checks the memory, the slot is as large as its rows),
        // which is aligned to 128 bytes, and every bit pattern is a value of `T`. The copy engine
        // may change the values meanwhile: they are copied, and used only if `Slots::take` returns
        // that it has not.
        unsafe { std::slice::from_raw_parts(at.cast(), count) }
    }
}
