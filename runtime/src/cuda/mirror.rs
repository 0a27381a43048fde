//! The metadata of a step, on the device, and the host's copy of it: only what differs crosses the link.
//!
//! A word that is [`Mirror::set`] to what it already is costs a comparison. Others go as (index, value) into a list in pinned memory,
//! one for steps of even numbers and one for odd ones, which the kernel at the head of the step applies. A list that is full goes on in
//! ordinary memory, and is carried over in pieces before the step ([`Mirror::spill`]).

use super::plan::{LaunchPlan, step};
use super::{CudaError, Device, DeviceBuffer, PinnedBuffer, launch};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use super::error::doing;

/// Steps that may be under way, and so lists.
const PARITIES: usize = 2;
/// Words of a list before its first pair: how many there are, and one that keeps pairs aligned.
const HEAD: usize = 2;

/// Words on the device, and what the host wants them to be.
pub struct Mirror {
    /// `[words]` u32, zeros at first.
    device: DeviceBuffer,
    host: Box<[u32]>,
    /// `[PARITIES][HEAD + 2 * capacity]` u32.
    lists: PinnedBuffer,
    /// Pairs of a list.
    capacity: usize,
    plan: LaunchPlan,
    /// The list of the step that is being filled.
    parity: usize,
    count: usize,
    /// Pairs beyond the list's end.
    spilled: Vec<[u32; 2]>,
}

impl Mirror {
    /// A mirror of `words` words, of which a step usually changes no more than `capacity`.
    pub fn new(device: &Device, words: usize, capacity: usize) -> Result<Mirror, CudaError> {
        let capacity = capacity.clamp(1, words.max(1));
        let bytes = PARITIES * (HEAD + 2 * capacity) * 4;
        let lists = device.alloc_pinned(bytes, "the lists of differences")?;
        // SAFETY: the memory is `bytes` long and not yet known to anybody else.
        unsafe { lists.as_ptr().write_bytes(0, bytes) };
        Ok(Mirror {
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
    pub fn at(&self, index: usize) -> CUdeviceptr {
        debug_assert!(index < self.host.len());
        self.device.at() + 4 * index as u64
    }

    /// What the host wants word `index` to be.
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
            // SAFETY: the pair lies within the list of this parity, which no kernel reads now: see `begin`.
            unsafe { self.pair(self.count).write([index as u32, value]) };
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

    /// Ends the list; from now on [`Mirror::apply`] may be launched.
    pub fn end(&mut self) {
        // SAFETY: the head of this parity's list, which no kernel reads now.
        unsafe { self.list().write(self.count as u32) };
    }

    /// Pairs in the list that is being filled, and beyond it.
    pub fn pending(&self) -> usize {
        self.count + self.spilled.len()
    }

    /// Carries what did not fit into the list over, and waits for it: rare, and slow.
    pub fn spill(&mut self, device: &Device, stream: &CudaStream) -> Result<(), CudaError> {
        while !self.spilled.is_empty() {
            self.end();
            self.apply(device, stream, self.parity)?;
            stream.synchronize().map_err(doing("waiting for a list of differences"))?;
            let take = self.spilled.len().min(self.capacity);
            let rest = self.spilled.len() - take;
            for (place, pair) in self.spilled[rest..].iter().enumerate() {
                // SAFETY: as in `set`; the kernel that read the list has ended.
                unsafe { self.pair(place).write(*pair) };
            }
            self.spilled.truncate(rest);
            self.count = take;
        }
        self.end();
        Ok(())
    }

    /// Launches the kernel that applies the list of `parity`.
    pub fn apply(
        &self,
        device: &Device,
        stream: &CudaStream,
        parity: usize,
    ) -> Result<(), CudaError> {
        let count = self.lists.at() + (parity * (HEAD + 2 * self.capacity) * 4) as u64;
        let addresses = [self.device.at(), count, count + (HEAD * 4) as u64];
        // SAFETY: the list and the words are as large as the kernel reads and writes: `set` checked every index. Both live until the
        // stream was waited for, which the owner of the mirror answers for.
        unsafe { launch::apply_diffs(device, stream, &self.plan, addresses) }
    }

    /// The kernel that [`Mirror::apply`] launches.
    pub fn plan(&self) -> &LaunchPlan {
        &self.plan
    }

    fn list(&self) -> *mut u32 {
        // SAFETY: within the allocation.
        unsafe { self.lists.as_ptr().cast::<u32>().add(self.parity * (HEAD + 2 * self.capacity)) }
    }

    fn pair(&self, place: usize) -> *mut [u32; 2] {
        // SAFETY: within the list, since `place` is below the capacity.
        unsafe { self.list().add(HEAD + 2 * place).cast() }
    }
}
