//! The metadata of a step, on the device, and its host copy: only what differs crosses the
//! link.
//!
//! A word that is [`StepMetadata::set`] to what it already is costs a comparison. Others go as
//! (index, value) into a list in pinned memory, one for steps of even numbers and one for odd ones,
//! which the kernel at the head of the step applies. Pairs that do not fit the list go to ordinary
//! memory, and are applied in pieces before the step ([`StepMetadata::spill`]).

use super::device::Device;
use super::error::CudaError;
use super::launch::Launch;
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::plan::{LaunchPlan, step};
use super::queue::Queue;
use trail_ptx::DevicePtr;
use trail_ptx::params::ApplyDiffsParams;

/// Steps that may be in flight: the copies of everything that a step has for itself.
pub(super) const PARITIES: usize = 2;
/// Words of a list before its first pair: how many there are, and one that keeps pairs aligned.
const HEAD: usize = 2;

/// The metadata's words on the device, and their host copy.
pub struct StepMetadata {
    /// `[words]` u32, zeros at first.
    device: DeviceBuffer,
    host: Box<[u32]>,
    /// `[PARITIES][HEAD + 2 * capacity]` u32.
    lists: PinnedBuffer,
    /// Pairs of a list.
    capacity: usize,
    plan: LaunchPlan,
    /// The list of the step that is being written.
    parity: usize,
    count: usize,
    /// Pairs beyond the list's end.
    spilled: Vec<[u32; 2]>,
}

impl StepMetadata {
    /// Metadata of `words` words; a step usually changes no more than `capacity`.
    pub fn new(device: &Device, words: usize, capacity: usize) -> Result<StepMetadata, CudaError> {
        let capacity = capacity.clamp(1, words.max(1));
        let bytes = PARITIES * (HEAD + 2 * capacity) * 4;
        let lists = device.alloc_pinned_zeros(bytes, "the lists of differences")?;
        Ok(StepMetadata {
            device: device.alloc_zeros(words * 4, "the metadata of a step")?,
            host: vec![0; words].into(),
            lists,
            capacity,
            plan: step::apply_diffs(capacity),
            parity: 0,
            count: 0,
            spilled: Vec::with_capacity(words),
        })
    }

    /// The device address of word `index`.
    pub fn at(&self, index: usize) -> DevicePtr<u32> {
        debug_assert!(index < self.host.len());
        self.device.device_ptr().add(index)
    }

    /// The host value of word `index`.
    pub fn get(&self, index: usize) -> u32 {
        self.host[index]
    }

    /// Begins the list of the step numbered `step`. The step two before it has ended.
    pub fn begin(&mut self, step: u64) {
        debug_assert!(self.spilled.is_empty());
        self.parity = (step % PARITIES as u64) as usize;
        self.count = 0;
    }

    /// Makes word `index` be `value`. A word is set once a step.
    #[inline]
    pub fn set(&mut self, index: usize, value: u32) {
        let word = &mut self.host[index];
        if *word == value {
            return;
        }
        *word = value;
        if self.count < self.capacity {
            self.write_pair(self.count, [index as u32, value]);
            self.count += 1;
        } else {
            self.spilled.push([index as u32, value]);
        }
    }

    /// The same for words that follow each other.
    #[inline]
    pub fn set_all(&mut self, first: usize, values: &[u32]) {
        for (offset, &value) in values.iter().enumerate() {
            self.set(first + offset, value);
        }
    }

    /// Ends the list; from now on [`StepMetadata::apply`] may be launched.
    pub fn end(&mut self) {
        let at = 4 * self.list(self.parity);
        self.lists.write(at, &[self.count as u32]);
    }

    /// Pairs in the list that is being written, and beyond it.
    pub fn pending(&self) -> usize {
        self.count + self.spilled.len()
    }

    /// Applies the pairs that did not fit the list, and waits for them: rare, and slow.
    pub fn spill(&mut self, queue: &Queue) -> Result<(), CudaError> {
        while !self.spilled.is_empty() {
            self.end();
            self.apply(queue, self.parity)?;
            queue.synchronize("waiting for a list of differences")?;
            let take = self.spilled.len().min(self.capacity);
            let rest = self.spilled.len() - take;
            for place in 0..take {
                // The kernel that read the list has ended.
                self.write_pair(place, self.spilled[rest + place]);
            }
            self.spilled.truncate(rest);
            self.count = take;
        }
        self.end();
        Ok(())
    }

    /// Launches the kernel that applies the list of `parity`.
    pub fn apply(&self, queue: &Queue, parity: usize) -> Result<(), CudaError> {
        let count = self.lists.device_ptr().add(self.list(parity));
        let words = self.device.device_ptr();
        let params = ApplyDiffsParams { words, count, diffs: count.add(HEAD) };
        // The list and the words are as large as the kernel reads and writes: `set` checked every
        // index.
        queue.launch(&Launch { plan: self.plan, params })
    }

    /// The kernel that [`StepMetadata::apply`] launches.
    pub fn plan(&self) -> &LaunchPlan {
        &self.plan
    }

    /// The first word of the list of `parity`.
    fn list(&self, parity: usize) -> usize {
        parity * (HEAD + 2 * self.capacity)
    }

    /// Writes a pair into the list of this parity, which no kernel reads now: see `begin`.
    fn write_pair(&mut self, place: usize, pair: [u32; 2]) {
        let at = 4 * (self.list(self.parity) + HEAD + 2 * place);
        self.lists.write(at, &pair);
    }
}
