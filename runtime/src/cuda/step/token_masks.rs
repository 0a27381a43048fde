//! Masks of the rows whose next token a constraint chooses from, and their way to the device.

use crate::backend::{Allowed, TokenMask};
use crate::cuda::device::Device;
use crate::cuda::error::{CudaError, driver_error};
use crate::cuda::memory::{DeviceBuffer, PinnedBuffer};
use crate::cuda::queue::Queue;
use trail_ptx::DevicePtr;

/// Masks `[rows of logits, words]` of the step that was written last. One with masks is collected
/// before the next one is written, so one feed is enough.
pub(super) struct TokenMasks {
    masks: DeviceBuffer,
    feed: PinnedBuffer,
    /// Words of a row.
    words: usize,
    /// Rows that the step has, at least.
    used: usize,
}

impl TokenMasks {
    pub(super) fn new(device: &Device, vocab: usize, rows: usize) -> Result<TokenMasks, CudaError> {
        let words = TokenMask::none(vocab).words().len();
        let bytes = rows * words * 4;
        Ok(TokenMasks {
            masks: device.alloc_zeros(bytes, "masks of constrained requests")?,
            feed: device.alloc_pinned_zeros(bytes, "masks of constrained requests")?,
            words,
            used: 0,
        })
    }

    pub(super) fn device_ptr(&self) -> DevicePtr<u32> {
        self.masks.device_ptr()
    }

    /// Words of a row.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.used = 0;
    }

    /// Row `index` of the logits may have the tokens `allowed`. Returns true if it needs a mask.
    pub(super) fn set(&mut self, index: usize, allowed: &Allowed) -> bool {
        let first = 4 * index * self.words;
        match allowed {
            Allowed::Any => return false,
            Allowed::Only(id) => {
                self.feed.bytes_mut()[first..first + 4 * self.words].fill(0);
                self.feed.write(first + 4 * (*id as usize / 32), &[1u32 << (id % 32)]);
            }
            Allowed::Mask(mask) => self.feed.write(first, mask.words()),
        }
        self.used = self.used.max(index + 1);
        true
    }

    /// Starts the copy of the step's masks.
    pub(super) fn upload(&self, queue: &Queue) -> Result<(), CudaError> {
        if self.used == 0 {
            return Ok(());
        }
        let bytes = 0..4 * self.used * self.words;
        queue
            .copy_to_device(self.device_ptr(), &self.feed, bytes)
            .map_err(driver_error("copying masks of constrained requests"))
    }
}
