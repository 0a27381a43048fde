//! The ring of two slots: pinned memory, and the state of each slot.

use crate::backend::TapRow;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::memory::PinnedBuffer;
use crate::cuda::queue::Queue;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUdeviceptr;
use half::bf16;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SLOTS: usize = 2;
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

/// State of a slot.
struct Slot {
    /// The step, or 0.
    step: u64,
    /// A consumer has copied `rows`.
    is_taken: bool,
    rows: Vec<TapRow>,
}

/// Pinned memory that the side stream writes, and what the engine's thread says of it.
pub(in crate::cuda) struct Ring {
    /// `[SLOTS][rows, width]`, then `[SLOTS]` flags.
    memory: PinnedBuffer,
    row: Row,
    /// Bytes of a slot.
    slot_bytes: usize,
    slots: [Mutex<Slot>; SLOTS],
    /// The last step that was given to the device.
    launched: AtomicU64,
    /// The last step with rows that was given to the device, and the last that a consumer has done
    /// with.
    announced: AtomicU64,
    finished: AtomicU64,
    late: AtomicU64,
}

impl Ring {
    /// Slots of up to `rows` rows.
    pub(in crate::cuda) fn new(device: &Device, rows: usize, row: Row) -> Result<Ring, CudaError> {
        let slot_bytes = (rows * row.width * row.element).next_multiple_of(FLAG_BYTES);
        let bytes = SLOTS * (slot_bytes + FLAG_BYTES);
        let memory = device.alloc_pinned_zeros(bytes, "tapped rows")?;
        let slot = || Mutex::new(Slot { step: 0, is_taken: true, rows: Vec::with_capacity(rows) });
        let zero = AtomicU64::default;
        let slots = [slot(), slot()];
        let (launched, announced, finished, late) = (zero(), zero(), zero(), zero());
        Ok(Ring { memory, row, slot_bytes, slots, launched, announced, finished, late })
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

    /// Says that `step` is about to be given to the device, with `rows`; before it is. True if
    /// there is something to wait for.
    pub(in crate::cuda) fn announce(&self, step: u64, rows: &[TapRow]) -> bool {
        self.launched.store(step, Ordering::SeqCst);
        let mut slot = self.slot(step);
        if !slot.is_taken {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        slot.step = step;
        slot.is_taken = rows.is_empty();
        slot.rows.clear();
        slot.rows.extend_from_slice(rows);
        drop(slot);
        if !rows.is_empty() {
            self.announced.store(step, Ordering::SeqCst);
        }
        !rows.is_empty()
    }

    /// The oldest step that waits to be consumed, and whose rows it has: they are copied to `rows`.
    /// None: whatever was announced until now is overwritten, or consumed, and counts as finished.
    pub(super) fn next(&self, rows: &mut Vec<TapRow>) -> Option<u64> {
        let announced = self.announced.load(Ordering::SeqCst);
        let finished = self.finished.load(Ordering::Relaxed);
        for step in [announced.saturating_sub(1), announced] {
            if step <= finished || step == 0 {
                continue;
            }
            let slot = self.slot(step);
            if slot.step == step && !slot.is_taken {
                rows.clear();
                rows.extend_from_slice(&slot.rows);
                return Some(step);
            }
        }
        self.finish(announced);
        None
    }

    /// Returns true if the rows of `step` were not overwritten so far; then they count as consumed.
    /// Otherwise the engine's thread counts them as late.
    pub(in crate::cuda) fn claim(&self, step: u64) -> bool {
        let mut slot = self.slot(step);
        // Pairs with the device's writes: what it wrote after `launched` was raised is not read
        // before `launched` is.
        fence(Ordering::SeqCst);
        let is_whole = slot.step == step && !self.is_overwritten(step);
        if is_whole {
            slot.is_taken = true;
        }
        is_whole
    }

    /// No thread works on the rows of `step` any more.
    pub(in crate::cuda) fn finish(&self, step: u64) {
        self.finished.fetch_max(step, Ordering::SeqCst);
    }

    /// Returns true if the rows of `step` have arrived.
    pub(in crate::cuda) fn is_there(&self, step: u64) -> bool {
        self.memory.load(self.flag_at(slot_of(step))) == step as u32
    }

    /// Returns true if the device may have begun to overwrite the rows of `step`: then values that
    /// were read are invalid.
    pub(super) fn is_overwritten(&self, step: u64) -> bool {
        self.launched.load(Ordering::SeqCst) >= step + SLOTS as u64
    }

    /// Steps whose rows were overwritten before a prediction was made from them.
    pub(in crate::cuda) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Returns true if a step's rows are awaited or worked on.
    pub(super) fn is_busy(&self) -> bool {
        self.announced.load(Ordering::SeqCst) > self.finished.load(Ordering::SeqCst)
    }

    /// The rows of `step`, where they are activations. The device may overwrite them: a reader
    /// copies them, and uses the copy only if [`Ring::claim`] returns true.
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
        // may change the values meanwhile: they are copied, and used only if `claim` says that it
        // has not.
        unsafe { std::slice::from_raw_parts(at.cast(), count) }
    }

    fn slot(&self, step: u64) -> MutexGuard<'_, Slot> {
        self.slots[slot_of(step)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slot_of(step: u64) -> usize {
    (step % SLOTS as u64) as usize
}
