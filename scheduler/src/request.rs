//! A request as the scheduler sees it: counts of tokens, a phase, and what is predicted of it.

use crate::limits::LATE_STEPS_MAX;

/// The caller's name for a request; the scheduler only carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request's stable place in the scheduler from submission to finish; then it is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestIdx(pub u32);

impl RequestIdx {
    /// For indexing arrays with one entry per index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request at the door.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewRequest {
    /// The caller's name for it.
    pub id: RequestId,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// When it arrived, seconds on the caller's clock. The order of arrival is that of submission.
    pub arrival_s: f64,
    /// Output tokens a prompt-only predictor expects, if there is one.
    pub initial_prediction: Option<f32>,
    /// Output tokens it will in truth have, where a replay or a simulation knows.
    pub true_length: Option<u32>,
}

/// What the probe read from one step's activation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Output tokens expected when `step` began: the one that `step` samples is the first of them.
    pub remaining: f32,
    /// The 10 % quantile of the same, tokens.
    pub p10: f32,
    /// The median, tokens.
    pub p50: f32,
    /// The 90 % quantile, tokens.
    pub p90: f32,
    /// The step whose activation was read.
    pub step: u64,
    /// The index's generation at that step: a finished request's prediction is not its successor's.
    pub generation: u32,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nowhere: the index is unused.
    #[default]
    Free,
    /// In the queue without KV: never started, or evicted.
    Waiting,
    /// In the current plan.
    Running,
    /// Preempted, but still holding its KV.
    Paused,
    /// Its KV is being copied to the host; until that ends it holds its blocks.
    SwappingOut,
    /// Its KV is with the host; it holds no block.
    Swapped,
    /// Its KV is being copied back into blocks it holds.
    SwappingIn,
}

/// Everything a policy may rank by. Tests of policies build one with [`RequestState::new`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestState {
    /// The caller's name for it.
    pub id: RequestId,
    /// Its place.
    pub idx: RequestIdx,
    /// How many requests had the index before.
    pub generation: u32,
    /// Order of arrival: unique and increasing over the scheduler's life.
    pub seq: u64,
    /// When it arrived, seconds on the caller's clock.
    pub arrival_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Output tokens it will in truth have, where known.
    pub true_length: Option<u32>,
    /// Where it is.
    pub phase: Phase,
    /// Whether it was ever in a plan.
    pub started: bool,
    /// Output tokens so far: its age. Survives preemption and eviction.
    pub generated: u32,
    /// Tokens whose KV is in the cache.
    pub computed: u32,
    /// Most tokens that were ever computed: below it, computing is computing again.
    pub computed_max: u32,
    /// r of TRAIL: the first prediction of the whole output's tokens, fixed for life.
    pub first_prediction: Option<f32>,
    /// The last accepted prediction, as it came.
    pub prediction: Option<Prediction>,
    /// Output tokens since it last entered the batch.
    pub slice_tokens: u32,
    /// Times it left the batch unfinished.
    pub preemptions: u32,
    /// Times it lost its KV.
    pub evictions: u32,
    /// Times its KV left for the host.
    pub swaps: u32,
    /// Steps it found no blocks and others went ahead, or were held up by it.
    pub passed_over: u32,
    /// In the plan that was not yet advanced over.
    pub(crate) planned: bool,
    /// Finished while a transfer was under way: of the request nothing is left but the index.
    pub(crate) ended: bool,
    /// The expectation, counted down by one per token since it was made.
    countdown: Option<f32>,
    /// `generated` at the step of the last accepted prediction.
    predicted_age: Option<u32>,
    /// Bit i: a token was sampled in step `sampled_step - i`.
    sampled: u64,
    sampled_step: u64,
}

impl RequestState {
    /// A request that just arrived: waiting, never started.
    pub fn new(idx: RequestIdx, generation: u32, seq: u64, request: &NewRequest) -> RequestState {
        let initial = request.initial_prediction.filter(|tokens| tokens.is_finite());
        RequestState {
            id: request.id,
            idx,
            generation,
            seq,
            arrival_s: request.arrival_s,
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            true_length: request.true_length,
            phase: Phase::Waiting,
            first_prediction: initial,
            countdown: initial,
            ..RequestState::default()
        }
    }

    /// Tokens it consists of: prompt and output so far.
    pub fn tokens(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    /// Tokens to compute before the next one can be sampled: 1 for a decode.
    pub fn uncomputed(&self) -> u32 {
        self.tokens() - self.computed
    }

    /// Whether it holds KV that a step can use, or is about to.
    pub fn resident(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Paused)
    }

    /// Whether its KV is on its way to the host or back.
    pub fn moving(&self) -> bool {
        matches!(self.phase, Phase::SwappingOut | Phase::SwappingIn)
    }

    /// Output tokens still expected, if anything was ever predicted. An unfinished request has at
    /// least one to go and at most what `max_tokens` leaves, whatever the predictor says.
    pub fn remaining(&self) -> Option<f32> {
        let most = self.max_tokens.saturating_sub(self.generated).max(1);
        self.countdown.map(|tokens| tokens.clamp(1.0, most as f32))
    }

    /// Takes a prediction in; says whether it was accepted.
    ///
    /// Accepted is at most one for each output token, in order of age. That bounds how often a
    /// request can change its rank without getting on, which is what keeps requests from evicting
    /// each other in a circle (see `fill`).
    pub(crate) fn predict(&mut self, prediction: &Prediction) -> bool {
        let Some(late) = self.sampled_since(prediction.step) else { return false };
        let age = self.generated - late;
        let fresh = self.predicted_age.is_none_or(|last| age > last);
        if !fresh || !prediction.remaining.is_finite() {
            return false;
        }
        self.predicted_age = Some(age);
        self.prediction = Some(*prediction);
        self.countdown = Some(prediction.remaining - late as f32);
        self.first_prediction.get_or_insert(prediction.remaining + age as f32);
        true
    }

    /// The forward pass computed `len` tokens, and sampled one more if `sample`.
    pub(crate) fn advance(&mut self, step: u64, len: u32, sample: bool) {
        self.planned = false;
        self.computed += len;
        self.computed_max = self.computed_max.max(self.computed);
        if !sample {
            return;
        }
        self.generated += 1;
        self.slice_tokens += 1;
        self.countdown = self.countdown.map(|tokens| tokens - 1.0);
        let shift = step.saturating_sub(self.sampled_step);
        self.sampled = if shift < LATE_STEPS_MAX { self.sampled << shift } else { 0 } | 1;
        self.sampled_step = step;
    }

    /// Tokens sampled in `step` and after it; None if that is too long ago to know.
    fn sampled_since(&self, step: u64) -> Option<u32> {
        match self.sampled_step.checked_sub(step) {
            None => Some(0),
            Some(late) if late < LATE_STEPS_MAX => {
                Some((self.sampled & u64::MAX >> (LATE_STEPS_MAX - 1 - late)).count_ones())
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(initial_prediction: Option<f32>) -> RequestState {
        let new = NewRequest {
            id: RequestId(0),
            prompt_tokens: 4,
            max_tokens: 200,
            arrival_s: 0.0,
            initial_prediction,
            true_length: None,
        };
        RequestState::new(RequestIdx(0), 0, 0, &new)
    }

    fn prediction(step: u64, remaining: f32) -> Prediction {
        Prediction { step, remaining, ..Prediction::default() }
    }

    #[test]
    fn the_first_prediction_is_r_for_life() {
        let mut early = request(Some(50.0));
        assert!(early.predict(&prediction(0, 80.0)));
        assert_eq!((early.first_prediction, early.remaining()), (Some(50.0), Some(80.0)));

        // Without one from the prompt, r is the probe's remaining tokens plus those generated.
        let mut late = request(None);
        late.advance(10, 4, true);
        late.advance(11, 1, true);
        assert!(late.predict(&prediction(12, 80.0)));
        late.advance(12, 1, true);
        assert!(late.predict(&prediction(13, 5.0)));
        assert_eq!((late.first_prediction, late.remaining()), (Some(82.0), Some(5.0)));
    }

    #[test]
    fn a_late_prediction_is_counted_down_by_the_tokens_since() {
        let mut request = request(Some(150.0));
        request.advance(10, 4, true); // steps 11 and 12: not in the batch
        request.advance(13, 1, true);
        request.advance(14, 1, true);
        assert_eq!(request.remaining(), Some(147.0));
        assert!(request.predict(&prediction(13, 100.0)));
        assert_eq!(request.remaining(), Some(98.0));
        assert!(!request.predict(&prediction(10, 1.0)), "older than the last");
        assert!(!request.predict(&prediction(13, 1.0)), "of the same age");
        assert!(!request.predict(&prediction(14, f32::NAN)));
        assert!(request.predict(&prediction(14, 60.0)));
        assert_eq!(request.remaining(), Some(59.0));
    }

    #[test]
    fn too_late_to_count_is_dropped() {
        let mut request = request(None);
        (0..=LATE_STEPS_MAX).for_each(|step| request.advance(step, 1, true));
        assert_eq!(request.sampled_since(0), None);
        assert_eq!(request.sampled_since(1), Some(64));
        assert_eq!(request.sampled_since(64), Some(1));
        assert_eq!(request.sampled_since(65), Some(0));
        assert!(!request.predict(&prediction(0, 9.0)));
    }

    #[test]
    fn remaining_stays_between_one_and_what_max_tokens_leaves() {
        let mut request = request(Some(1.0));
        request.advance(0, 4, true);
        request.advance(1, 1, true);
        assert_eq!(request.remaining(), Some(1.0));
        assert!(request.predict(&prediction(2, 1e9)));
        assert_eq!(request.remaining(), Some(198.0));
    }
}
