//! What the engine asks of whatever computes: launch a step, collect its tokens, move KV blocks aside and back.

use std::error::Error;
use std::fmt;

use super::request::SamplingParams;
use super::sampling::Sampled;
use super::tap::TapPlan;
use crate::batch::Batch;

/// How the token after a row is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The request's parameters; they passed [`super::sampling::validate`].
    pub sampling: &'a SamplingParams,
    /// The request's prompt.
    pub prompt: &'a [u32],
    /// Its output as far as the host knows it: without the token that the step under way samples.
    pub generated: &'a [u32],
    /// Absolute position of the token that is chosen.
    pub position: u32,
}

/// Looks up what a batch does not carry, by the request's slot.
pub trait Choices {
    /// How the request in `slot` chooses its next token.
    fn choice(&self, slot: u32) -> Choice<'_>;
}

/// One step, as it is handed to a backend.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// The step's number: 1, 2, 3, ... without gaps.
    pub number: u64,
    /// The rows. Slots are below the engine's `max_requests`, tokens may be [`crate::batch::PENDING`] where the backend works ahead.
    pub batch: &'a Batch,
    /// How the rows that want logits choose.
    pub choices: &'a dyn Choices,
    /// The rows to tap; `None`: nothing predicts.
    pub tap: Option<&'a TapPlan>,
}

/// Runs steps of one model over one paged KV cache.
///
/// Everything is called from the engine's thread. After a [`Fault`] nothing but `drop` is called.
pub trait Backend: Send {
    /// Steps that may be under way while the next is planned and launched: 0 where [`Backend::launch`] returns with its
    /// step done, 1 where a device works on its own.
    fn ahead(&self) -> usize;

    /// Hands a step over. At most [`Backend::ahead`] launched steps are not collected when this is called.
    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault>;

    /// Waits for the oldest step that was launched and not collected. Appends what each segment with `logits` chose, in
    /// order of segments.
    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault>;

    /// KV blocks to and from a pool of the host's; `None` where there is none.
    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        None
    }
}

/// Moves KV blocks to the host and back, beside the steps and without holding one up.
pub trait Transfers {
    /// Begins to copy `blocks`, the KV of the request in `slot`, to the host, behind all steps launched so far. The blocks must
    /// not be given away before [`Transfers::finished`] names the slot. The caller keeps within the host pool's size.
    fn swap_out(&mut self, slot: u32, blocks: &[u32]) -> Result<(), Fault>;

    /// Begins to copy what was swapped out of `slot` into `blocks`, as many as there were, behind all steps launched so far. No
    /// step may use them before [`Transfers::finished`] names the slot; then the host's copy is gone.
    fn swap_in(&mut self, slot: u32, blocks: &[u32]) -> Result<(), Fault>;

    /// Appends the slots whose transfer has ended since the last call. Does not wait.
    fn finished(&mut self, slots: &mut Vec<u32>) -> Result<(), Fault>;

    /// Forgets the host's copy of `slot`'s blocks. Not called while a transfer of the slot is under way.
    fn forget(&mut self, slot: u32);

    /// Blocks that the host's pool holds.
    fn host_blocks(&self) -> u32;

    /// What one block's copy costs, seconds, as measured at start; [`Transfers::token_s`] is the other side of the choice.
    fn block_s(&self) -> f64;

    /// What computing one prompt token anew costs, seconds, as measured at start.
    fn token_s(&self) -> f64;
}

/// A backend broke down: in one line, what was being done and what went wrong. There is no going on after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Fault {}
