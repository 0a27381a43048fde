//! What requests with penalties have seen: a row of marks each, written anew when such a request gets a seat.
//!
//! After that the sampler counts what it chooses by itself. The tokens travel in pinned memory, as the lists of differences do.

use super::layout::Limits;
use crate::backend::SamplingInput;
use crate::cuda::error::doing;
use crate::cuda::plan::sampling;
use crate::cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer, launch};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

const PARITIES: usize = 2;
const JOB_WORDS: usize = 4;
/// Tokens for which there is room in a step, unless one context is longer. A step that seats more is held up.
const USUAL_TOKENS: usize = 1 << 16;

/// Marks `[seats, vocab]`, and the way there.
pub(super) struct Marks {
    marks: DeviceBuffer,
    vocab: usize,
    /// `[PARITIES]` of jobs `[seats, JOB_WORDS]`, then tokens `[capacity]`, i32.
    feed: PinnedBuffer,
    seats: usize,
    capacity: usize,
    parity: usize,
    jobs: usize,
    tokens: usize,
}

impl Marks {
    pub(super) fn new(device: &Device, vocab: usize, limits: &Limits) -> Result<Marks, CudaError> {
        let seats = limits.segments;
        // A request's own last token may be beyond its context.
        let capacity = (limits.context + 1).max(USUAL_TOKENS.min(seats * limits.context));
        // Jobs lie behind the tokens of the other parity, and are read 16 bytes at a time.
        let capacity = capacity.next_multiple_of(JOB_WORDS);
        let bytes = PARITIES * (seats * JOB_WORDS + capacity) * 4;
        Ok(Marks {
            marks: device.alloc_zeros(seats * vocab * 4, "marks of seen tokens")?,
            vocab,
            feed: device.alloc_pinned(bytes, "tokens of requests with penalties")?,
            seats,
            capacity,
            parity: 0,
            jobs: 0,
            tokens: 0,
        })
    }

    pub(super) fn at(&self) -> CUdeviceptr {
        self.marks.at()
    }

    /// The kernel that is launched.
    pub(super) fn plan(&self, jobs: usize, tokens: usize) -> crate::cuda::plan::LaunchPlan {
        sampling::marks(jobs, tokens, self.vocab)
    }

    /// Begins a step's jobs. The step two before it has ended.
    pub(super) fn begin(&mut self, parity: usize) {
        (self.parity, self.jobs, self.tokens) = (parity, 0, 0);
    }

    /// The request in `seat` will sample by `input`, from what it has seen so far.
    pub(super) fn add(
        &mut self,
        device: &Device,
        stream: &CudaStream,
        seat: u32,
        input: &SamplingInput<'_>,
    ) -> Result<(), CudaError> {
        if !input.params.has_penalties() {
            return Ok(());
        }
        let count = input.prompt.len() + input.generated.len();
        if self.jobs == self.seats || self.tokens + count > self.capacity {
            self.launch(device, stream)?;
            stream.synchronize().map_err(doing("waiting for marks"))?;
            self.begin(self.parity);
        }
        // The tokens beyond any context cannot be there; were they, they would be left out rather than written past the end.
        let room = self.capacity - self.tokens;
        let seen = input.prompt.iter().chain(input.generated).take(room);
        let first = self.words() + self.seats * JOB_WORDS + self.tokens;
        let base = self.feed.as_ptr().cast::<u32>();
        for (offset, &token) in seen.enumerate() {
            // SAFETY: `offset` is below the room that is left; no kernel reads this parity's tokens now.
            unsafe { base.add(first + offset).write(token) };
        }
        let generated = input.generated.len().min(room - input.prompt.len().min(room));
        let [prompt, generated] = [input.prompt.len().min(room), generated].map(|n| n as u32);
        let job = [seat, self.tokens as u32, prompt, generated];
        // SAFETY: there are fewer jobs than seats.
        unsafe { base.add(self.words() + self.jobs * JOB_WORDS).cast::<[u32; 4]>().write(job) };
        self.jobs += 1;
        self.tokens += count.min(room);
        Ok(())
    }

    /// Launches the jobs there are, behind the steps launched so far.
    pub(super) fn launch(&self, device: &Device, stream: &CudaStream) -> Result<(), CudaError> {
        if self.jobs == 0 {
            return Ok(());
        }
        let jobs = self.feed.at() + (self.words() * 4) as u64;
        let tokens = jobs + (self.seats * JOB_WORDS * 4) as u64;
        let plan = self.plan(self.jobs, self.tokens);
        // SAFETY: the feed holds the jobs and their tokens; it is written again two steps later. Marks have a row for each seat.
        unsafe { launch::marks(device, stream, &plan, self.vocab, self.at(), tokens, jobs) }
    }

    /// Words of the feed before this parity's.
    fn words(&self) -> usize {
        self.parity * (self.seats * JOB_WORDS + self.capacity)
    }
}
