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

/// Bytes of a slot's words, a line each: the step's number, then the flag.
const NUMBER_BYTES: usize = 128;
const FLAG_BYTES: usize = 128;
/// Value of a flag whose rows are there. The same for all steps, because a graph's write has its
/// value fixed; the number says which step's rows they are.
const ARRIVED: u32 = 1;

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
    /// `[SLOTS]` of rows `[rows, width]`, the step's number and the flag.
    memory: PinnedBuffer,
    row: Row,
    /// Bytes of a slot's rows.
    row_bytes: usize,
    pub(in crate::cuda) slots: Slots<TapRow>,
}

impl Ring {
    /// Slots of up to `rows` rows.
    pub(in crate::cuda) fn new(device: &Device, rows: usize, row: Row) -> Result<Ring, CudaError> {
        let row_bytes = (rows * row.width * row.element).next_multiple_of(NUMBER_BYTES);
        let bytes = SLOTS * (row_bytes + NUMBER_BYTES + FLAG_BYTES);
        let memory = device.alloc_pinned_zeros(bytes, "tapped rows")?;
        Ok(Ring { memory, row, row_bytes, slots: Slots::new(rows) })
    }

    /// First byte of the slot of `parity`.
    fn slot_at(&self, parity: usize) -> usize {
        parity * (self.row_bytes + NUMBER_BYTES + FLAG_BYTES)
    }

    fn number_at(&self, parity: usize) -> usize {
        self.slot_at(parity) + self.row_bytes
    }

    fn flag_at(&self, parity: usize) -> usize {
        self.number_at(parity) + NUMBER_BYTES
    }

    /// Announces `step`, with `rows`, before it is given to the device, and takes the slot's flag
    /// back. Returns true if there is something to wait for. A step two before whose copies are
    /// still in flight may set the flag after this; its number tells it from `step`.
    pub(in crate::cuda) fn announce(&self, step: u64, rows: &[TapRow]) -> bool {
        self.memory.store(self.flag_at(slot_of(step)), 0);
        self.slots.announce(step, rows)
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
        let (first, bytes) = (self.slot_at(parity), rows * self.row.width * self.row.element);
        queue.copy_to_host(&self.memory, first..first + bytes, from)
    }

    /// Starts a copy of the step's number at `number`, a word, to the slot of `parity`.
    pub(in crate::cuda) fn copy_number(
        &self,
        queue: &Queue,
        parity: usize,
        number: CUdeviceptr,
    ) -> Result<(), DriverError> {
        let at = self.number_at(parity);
        queue.copy_to_host(&self.memory, at..at + 4, number)
    }

    /// Sets the flag of `parity` behind the copies. A copy would not do as the flag: nothing orders
    /// two copies for a host that polls. A kernel would wait for room on a chip that the upper
    /// layers fill.
    pub(in crate::cuda) fn set_flag(
        &self,
        queue: &Queue,
        parity: usize,
    ) -> Result<(), DriverError> {
        queue.write_word(&self.memory, self.flag_at(parity), ARRIVED)
    }

    /// Returns true if the rows of `step` have arrived.
    pub(in crate::cuda) fn is_there(&self, step: u64) -> bool {
        // The flag first: what was copied before it is seen by the second load.
        let parity = slot_of(step);
        self.memory.load(self.flag_at(parity)) == ARRIVED
            && self.memory.load(self.number_at(parity)) == step as u32
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
