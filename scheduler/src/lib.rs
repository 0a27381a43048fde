#![doc = include_str!("../README.md")]
//! ## Files
//!
//! Time is an argument, so the engine, a simulator and a replay run the same code. Nothing
//! allocates after construction.
//!
//! The files, in the order a request meets them: [`request`], [`policy`] and [`policies`] (rank),
//! `order`, `fill` and `reserve` (choose), `blocks` (KV), `swap` (KV to the host and back),
//! [`plan`] (out). [`log`] records all of it. The crate trail-simulator runs this scheduler on a
//! virtual clock, and replays logs.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod block_sharing;
mod blocks;
mod brake;
mod checked;
mod config;
mod decision;
mod fill;
mod index_list;
mod key;
pub mod limits;
mod live_request;
#[cfg(feature = "log")]
pub mod log;
mod order;
pub mod plan;
pub mod policies;
pub mod policy;
mod prefill_limit;
mod prefill_pace;
mod ranks;
#[cfg(test)]
mod reference;
mod refusal;
pub mod request;
mod requests;
mod reserve;
mod scheduler;
mod step_cost;
mod step_pace;
mod swap;
mod swap_state;

pub use trail_platform::rng;

pub use blocks::{BlockChange, BlockHash, BlockId};
pub use checked::{CheckedScheduler, Misuse, RequestNumber};
pub use config::{ConfigError, Preemption, SchedulerConfig};
pub use decision::{Action, Decision};
pub use key::Key;
pub use limits::BLOCK_TOKENS;
pub use live_request::LiveRequest;
#[cfg(feature = "log")]
pub use log::{DecisionLog, LogHeader, LogSink, LoggedScheduler};
pub use plan::{Plan, PlanRow};
pub use policy::Policy;
pub use prefill_limit::{MIN_CHUNK_TOKENS, PrefillLimit};
pub use prefill_pace::{PrefillPace, PrefillWork};
pub use ranks::{Progress, Ranks};
pub use refusal::Refusal;
pub use request::{NewRequest, Phase, Prediction, RequestId, RequestIdx, RequestState};
pub use requests::Outstanding;
pub use reserve::Reserve;
pub use scheduler::Scheduler;
pub use step_cost::{ExpertCost, StepCost, StepWork};
pub use step_pace::{StepLine, StepPace};
pub use swap::{Copies, Finished, Transferred};
