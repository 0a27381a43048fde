//! Configuration of a scheduler: its sizes, and the bounds on skipping and blocking.

use std::fmt;

#[cfg(feature = "log")]
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_CONTEXT, MAX_REQUESTS, MAX_RUNNING, blocks_for};
use crate::refusal::Refusal;
use crate::request::NewRequest;
use crate::reserve::Reserve;

/// Sizes are fixed at construction: everything is allocated then.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct SchedulerConfig {
    /// Most sequences in one step.
    pub max_running: u32,
    /// Most requests held: running, paused and waiting together.
    pub max_requests: u32,
    /// Most rows (tokens to compute) in one step. At least `max_running`: a decode is never short
    /// of a row.
    pub token_budget: u32,
    /// KV blocks of [`crate::BLOCK_TOKENS`] tokens that the cache holds.
    pub num_blocks: u32,
    /// Longest prompt plus output, tokens.
    pub max_context: u32,
    /// Share of `num_blocks` that stays free when a request without KV enters the batch, so that
    /// the running requests can grow for some steps before an eviction (vLLM's watermark). In [0,
    /// 1). Higher: fewer evictions, smaller batches.
    pub watermark: f32,
    /// Steps in which a request that finds no blocks may be skipped. After these it is a barrier:
    /// no request ranked behind it enters the batch. 0: a barrier at once, as in vLLM.
    // Decision logs keep the names of format version 2.
    #[cfg_attr(feature = "log", serde(rename = "max_passed_over"))]
    pub max_skipped_steps: u32,
    /// Steps for which such a barrier holds before requests behind it may enter again, at least 1.
    /// Higher: sooner admission of large requests, more idle blocks.
    #[cfg_attr(feature = "log", serde(rename = "max_blocked"))]
    pub max_barrier_steps: u32,
    /// Requests skipped within one step before the walk stops searching for one that fits, at least
    /// 1; also the most paused requests that `reclaim` visits in a step. Bounds the time of a plan.
    pub max_lookahead: u32,
    /// Treatment of a victim's KV when its blocks are taken.
    pub preemption: Preemption,
    /// Capacity of the host pool in blocks. A victim that finds no room there is recomputed; with
    /// 0 every victim is, regardless of [`SchedulerConfig::preemption`].
    pub host_blocks: u32,
    /// Seconds to copy one block one way: for [`Preemption::Auto`].
    pub block_s: f64,
    /// Seconds to recompute one prompt token: for [`Preemption::Auto`].
    pub token_s: f64,
    /// Steps of growth of the running requests for which blocks are freed ahead of need, by
    /// swapping paused requests out. 0: only the watermark is kept free.
    pub reclaim_steps: u32,
    /// Growth for which free blocks are required when a request enters the batch from the queue.
    pub reserve: Reserve,
    /// Blocks without a holder that stay known by their content until they are needed
    /// ([`crate::Scheduler::push_block_hash`]). 0: blocks have no hashes, and none is shared.
    #[cfg_attr(feature = "log", serde(default))]
    pub cached_blocks: u32,
    /// True if a request begins with blocks found by hash only as far as one that its caller marked
    /// ([`crate::Scheduler::set_resumable`]): KV is not all that a request keeps of its tokens.
    #[cfg_attr(feature = "log", serde(default, skip_serializing_if = "std::ops::Not::not"))]
    pub marked_blocks: bool,
    /// Share of a minute's tokens above which recomputed ones brake evictions: only the first
    /// request in the order may evict then. In (0, 1]; 1: no brake.
    #[cfg_attr(feature = "log", serde(default = "no_brake"))]
    pub max_recompute: f32,
    /// Output tokens between two predictions that take effect in a request's rank, at least 1;
    /// those in between are ignored, and its remaining length counts down by one per token.
    pub refresh_tokens: u32,
}

/// Treatment of a victim's KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum Preemption {
    /// Discarded, and recomputed from the tokens.
    #[default]
    Recompute,
    /// Copied to the host and back; recomputed only if the host has no room.
    Swap,
    /// The faster of the two: copying to the host and back, or recomputing.
    Auto,
}

impl Default for SchedulerConfig {
    /// vLLM 0.5's sizes (256 sequences, 512 rows, watermark 0.01); 16,384 tokens of KV.
    fn default() -> Self {
        SchedulerConfig {
            max_running: 256,
            max_requests: 4096,
            token_budget: 512,
            num_blocks: 1024,
            max_context: 8192,
            watermark: 0.01,
            max_skipped_steps: 64,
            max_barrier_steps: 256,
            max_lookahead: 16,
            preemption: Preemption::Recompute,
            host_blocks: 0,
            block_s: 0.0,
            token_s: 0.0,
            reclaim_steps: 8,
            reserve: Reserve::None,
            cached_blocks: 0,
            marked_blocks: false,
            max_recompute: no_brake(),
            refresh_tokens: 1,
        }
    }
}

/// [`SchedulerConfig::max_recompute`] without a brake, as logs that lack it were recorded.
fn no_brake() -> f32 {
    1.0
}

impl SchedulerConfig {
    /// Checks the sizes, and the relations between them.
    pub fn validate(&self) -> Result<(), ConfigError> {
        within("max_running", self.max_running, 1, MAX_RUNNING)?;
        within("max_requests", self.max_requests, self.max_running, MAX_REQUESTS)?;
        within("token_budget", self.token_budget, self.max_running, u32::MAX)?;
        within("num_blocks", self.num_blocks, 1, u32::MAX / crate::BLOCK_TOKENS)?;
        within("max_context", self.max_context, 2, MAX_CONTEXT)?;
        within("max_skipped_steps", self.max_skipped_steps, 0, u32::MAX / 2)?;
        within("max_barrier_steps", self.max_barrier_steps, 1, u32::MAX / 2)?;
        within("max_lookahead", self.max_lookahead, 1, MAX_REQUESTS)?;
        within("host_blocks", self.host_blocks, 0, u32::MAX / crate::BLOCK_TOKENS)?;
        within("reclaim_steps", self.reclaim_steps, 0, MAX_CONTEXT)?;
        within("refresh_tokens", self.refresh_tokens, 1, MAX_CONTEXT)?;
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark(self.watermark));
        }
        if !(self.max_recompute > 0.0 && self.max_recompute <= 1.0) {
            return Err(ConfigError::MaxRecompute(self.max_recompute));
        }
        for (name, seconds) in [("block_s", self.block_s), ("token_s", self.token_s)] {
            if !(0.0..f64::INFINITY).contains(&seconds) {
                return Err(ConfigError::Cost { name, seconds });
            }
        }
        Ok(())
    }

    /// Checks that `request` fits alone: then it can finish without the help of any other request.
    pub fn admit(&self, request: &NewRequest) -> Result<(), Refusal> {
        let (max_context, num_blocks) = (self.max_context, self.num_blocks);
        if request.prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if request.max_tokens == 0 {
            return Err(Refusal::ZeroMaxTokens);
        }
        if request.generated >= request.max_tokens {
            let (generated, max_tokens) = (request.generated, request.max_tokens);
            return Err(Refusal::Complete { generated, max_tokens });
        }
        let needed_tokens = u64::from(request.prompt_tokens) + u64::from(request.max_tokens);
        if needed_tokens > u64::from(max_context) {
            return Err(Refusal::ContextTooLong { needed_tokens, max_context });
        }
        let needed_blocks = blocks_for(needed_tokens as u32);
        if needed_blocks > num_blocks {
            return Err(Refusal::NeverFits { needed_blocks, num_blocks });
        }
        Ok(())
    }

    /// The watermark in blocks.
    pub fn watermark_blocks(&self) -> u32 {
        (self.watermark * self.num_blocks as f32) as u32
    }
}

fn within(name: &'static str, value: u32, min: u32, max: u32) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { name, value, min, max })
}

/// An invalid configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConfigError {
    /// A size outside its bounds; some bounds come from the other sizes.
    OutOfRange {
        /// Field of [`SchedulerConfig`].
        name: &'static str,
        /// The value given.
        value: u32,
        /// Least allowed.
        min: u32,
        /// Most allowed.
        max: u32,
    },
    /// The watermark is not a share in [0, 1).
    Watermark(f32),
    /// The share of recomputed tokens is not one in (0, 1].
    MaxRecompute(f32),
    /// A cost that is not a time.
    Cost {
        /// Field of [`SchedulerConfig`].
        name: &'static str,
        /// The value given.
        seconds: f64,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { name, value, min, max } => {
                write!(f, "{name} is {value}: choose a value from {min} to {max}")
            }
            Self::Watermark(share) => {
                write!(f, "watermark is {share}: choose a share of the blocks in [0, 1)")
            }
            Self::MaxRecompute(share) => {
                write!(f, "max_recompute is {share}: choose a share of the tokens in (0, 1]")
            }
            Self::Cost { name, seconds } => {
                write!(f, "{name} is {seconds}: give the measured seconds, 0 or more")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
