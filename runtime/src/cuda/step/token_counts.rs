//! Token counts of requests with penalties: a row each, rewritten when such a request gets a batch
//! slot. Afterwards the sampler counts each token that it samples. The rows of draft tokens have
//! counts too, for a step, and those of their request are rewritten afterwards. The tokens travel
//! in pinned memory, as the lists of differences do.

use super::layout::StepLimits;
use crate::backend::SamplingInput;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::launch::Launch;
use crate::cuda::memory::{DeviceBuffer, PinnedBuffer};
use crate::cuda::plan::{LaunchPlan, sampling};
use crate::cuda::queue::Queue;
use crate::cuda::step_metadata::PARITIES;
use trail_ptx::DevicePtr;
use trail_ptx::params::TokenCountsParams;

const JOB_WORDS: usize = 4;
/// Tokens for which there is room in a step, unless one context is longer. A step that has more
/// is held up.
const USUAL_TOKENS: usize = 1 << 16;

/// TokenCounts `[rows, vocab]`, a row each batch slot and each draft token, and the way there.
pub(super) struct TokenCounts {
    counts: DeviceBuffer,
    vocab: usize,
    /// `[PARITIES]` of jobs `[rows, JOB_WORDS]`, then tokens `[capacity]`, i32.
    feed: PinnedBuffer,
    rows: usize,
    capacity: usize,
    parity: usize,
    jobs: usize,
    tokens: usize,
}

impl TokenCounts {
    pub(super) fn new(
        device: &Device,
        vocab: usize,
        limits: &StepLimits,
    ) -> Result<TokenCounts, CudaError> {
        let rows = limits.segments + limits.drafts;
        // A request's own last token may be beyond its context.
        let capacity = (limits.context + 1).max(USUAL_TOKENS.min(rows * limits.context));
        // Jobs lie behind the tokens of the other parity, and are read 16 bytes at a time.
        let capacity = capacity.next_multiple_of(JOB_WORDS);
        let bytes = PARITIES * (rows * JOB_WORDS + capacity) * 4;
        Ok(TokenCounts {
            counts: device.alloc_zeros(rows * vocab * 4, "marks of seen tokens")?,
            vocab,
            feed: device.alloc_pinned(bytes, "tokens of requests with penalties")?,
            rows,
            capacity,
            parity: 0,
            jobs: 0,
            tokens: 0,
        })
    }

    pub(super) fn device_ptr(&self) -> DevicePtr<u32> {
        self.counts.device_ptr()
    }

    /// The kernel that is launched.
    pub(super) fn plan(&self, jobs: usize, tokens: usize) -> LaunchPlan {
        sampling::token_counts(jobs, tokens, self.vocab)
    }

    /// Begins a step's jobs. The step two before it has ended.
    pub(super) fn begin(&mut self, parity: usize) {
        (self.parity, self.jobs, self.tokens) = (parity, 0, 0);
    }

    /// Row `place` of the counts becomes that of a request that samples by `input`, from what it
    /// has seen so far.
    pub(super) fn add(
        &mut self,
        queue: &Queue,
        place: u32,
        input: &SamplingInput<'_>,
    ) -> Result<(), CudaError> {
        if !input.params.has_penalties() {
            return Ok(());
        }
        let count = input.prompt.len() + input.generated.len();
        if self.jobs == self.rows || self.tokens + count > self.capacity {
            self.launch(queue)?;
            queue.synchronize("waiting for marks")?;
            self.begin(self.parity);
        }
        // The tokens beyond any context cannot be there; were they, they would be left out rather
        // than written past the end.
        let room = self.capacity - self.tokens;
        let prompt = &input.prompt[..input.prompt.len().min(room)];
        let generated = &input.generated[..input.generated.len().min(room - prompt.len())];
        let first = self.words() + self.rows * JOB_WORDS + self.tokens;
        // No kernel reads this parity's jobs and tokens now.
        self.feed.write(4 * first, prompt);
        self.feed.write(4 * (first + prompt.len()), generated);
        let job = [place, self.tokens as u32, prompt.len() as u32, generated.len() as u32];
        self.feed.write(4 * (self.words() + self.jobs * JOB_WORDS), &job);
        self.jobs += 1;
        self.tokens += prompt.len() + generated.len();
        Ok(())
    }

    /// Launches the jobs there are, behind the steps launched so far.
    pub(super) fn launch(&self, queue: &Queue) -> Result<(), CudaError> {
        if self.jobs == 0 {
            return Ok(());
        }
        let jobs = self.feed.device_ptr().add(self.words());
        let params = TokenCountsParams {
            token_counts: self.device_ptr(),
            tokens: jobs.add(self.rows * JOB_WORDS),
            jobs,
            vocab: self.vocab as i32,
            ..TokenCountsParams::default()
        };
        let plan = self.plan(self.jobs, self.tokens);
        // The feed holds the jobs and their tokens, and is written again two steps later.
        // TokenCounts have a row for each batch_idx.
        queue.launch(&Launch { plan, params })
    }

    /// Words of the feed before this parity's.
    fn words(&self) -> usize {
        self.parity * (self.rows * JOB_WORDS + self.capacity)
    }
}
