//! The ring of two slots: pinned memory, and the state of each slot.

use super::slots::{SLOTS, Slots, slot_of};
use crate::backend::TapRow;
use crate::cuda::device::Device;
use crate::cuda::error::{CudaError, driver_error};
use crate::cuda::memory::PinnedBuffer;
use crate::cuda::queue::Queue;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use half::bf16;
use trail_ptx::DevicePtr;

/// Bytes of a word, a line each: the step's number of a slot, and the fence's.
const WORD_BYTES: usize = 128;

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
    /// `[SLOTS]` of rows `[rows, width]` and the step's number, which is the flag; then the word
    /// that fences write.
    memory: PinnedBuffer,
    row: Row,
    /// Bytes of a slot's rows.
    row_bytes: usize,
    pub(in crate::cuda) slots: Slots<TapRow>,
}

impl Ring {
    /// Slots of up to `rows` rows.
    pub(in crate::cuda) fn new(device: &Device, rows: usize, row: Row) -> Result<Ring, CudaError> {
        let row_bytes = (rows * row.width * row.element).next_multiple_of(WORD_BYTES);
        let bytes = SLOTS * (row_bytes + WORD_BYTES) + WORD_BYTES;
        let memory = device.alloc_pinned_zeros(bytes, "tapped rows")?;
        Ok(Ring { memory, row, row_bytes, slots: Slots::new(rows) })
    }

    /// First byte of the slot of `parity`.
    fn slot_at(&self, parity: usize) -> usize {
        parity * (self.row_bytes + WORD_BYTES)
    }

    fn number_at(&self, parity: usize) -> usize {
        self.slot_at(parity) + self.row_bytes
    }

    /// Starts a copy of `rows` rows at `from` into the slot of `parity`. Threads may read the slot
    /// meanwhile: they know that it may change.
    pub(in crate::cuda) fn copy_rows<T>(
        &self,
        queue: &Queue,
        parity: usize,
        rows: usize,
        from: DevicePtr<T>,
    ) -> Result<(), DriverError> {
        let (first, bytes) = (self.slot_at(parity), rows * self.row.width * self.row.element);
        queue.copy_to_host(&self.memory, first..first + bytes, from)
    }

    /// Starts a copy of the step's number at `number`, a word, to the slot of `parity`: the flag. A
    /// fence comes first, as nothing orders two copies for a host that polls. It is a stream's
    /// memory write: a kernel would wait for room on a chip that the upper layers fill.
    pub(in crate::cuda) fn copy_flag(
        &self,
        queue: &Queue,
        parity: usize,
        number: DevicePtr<u32>,
    ) -> Result<(), DriverError> {
        self.fence(queue)?;
        let at = self.number_at(parity);
        queue.copy_to_host(&self.memory, at..at + 4, number)
    }

    /// Fails where the driver has no memory writes of streams, which the flag needs.
    pub(in crate::cuda) fn check_flag(&self, queue: &Queue) -> Result<(), CudaError> {
        match self.fence(queue) {
            Ok(()) => queue.synchronize("trying a stream's memory write"),
            Err(code) if code.0 == CUresult::CUDA_ERROR_NOT_SUPPORTED => Err(CudaError::Unusable(
                "the driver has no memory writes of streams (CUDA_ERROR_NOT_SUPPORTED), by \
                     which a probe's activations leave the GPU"
                    .into(),
            )),
            Err(code) => Err(driver_error("trying a stream's memory write")(code)),
        }
    }

    /// Writes a word behind a fence.
    fn fence(&self, queue: &Queue) -> Result<(), DriverError> {
        queue.write_word(&self.memory, SLOTS * (self.row_bytes + WORD_BYTES), 1)
    }

    /// Returns true if the rows of `step` have arrived.
    pub(in crate::cuda) fn is_there(&self, step: u64) -> bool {
        self.memory.load(self.number_at(slot_of(step))) == step as u32
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
        let (first, count) = (self.slot_at(slot_of(step)), rows * self.row.width);
        let at = self.memory.byte_at(&(first..first + count * size_of::<T>()));
        // SAFETY: within the slot (`byte_at` checks the memory, the slot is as large as its rows),
        // which is aligned to 128 bytes, and every bit pattern is a value of `T`. The copy engine
        // may change the values meanwhile: they are copied, and used only if `Slots::take` returns
        // that it has not.
        unsafe { std::slice::from_raw_parts(at.cast(), count) }
    }
}
