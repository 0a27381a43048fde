//! Iteration-level scheduling of language-model requests by predicted remaining length.
//!
//! Pure: no clock, no I/O, no threads. Time is an argument, so the engine, a simulator
//! and a replay run the same code. Nothing allocates after construction.
//!
//! One step, seen from the engine:
//!
//! ```
//! use trail_scheduler::{NewRequest, Prediction, RequestId, Scheduler, SchedulerConfig};
//! use trail_scheduler::policies::Trail;
//!
//! let policy = Box::new(Trail::default().policy());
//! let mut scheduler = Scheduler::new(SchedulerConfig::default(), policy)?;
//! let idx = scheduler.submit(NewRequest {
//!     id: RequestId(1),
//!     prompt_tokens: 20,
//!     max_tokens: 3,
//!     arrival_s: 0.0,
//!     initial_prediction: Some(3.0),
//!     ..Default::default()
//! })?;
//! for step in 0..3 {
//!     let plan = scheduler.plan(step, 0.0);
//!     assert!(plan.rows[0].sample); // ... the forward pass runs the rows, and samples ...
//!     scheduler.advance();
//!     let generation = scheduler.generation(idx);
//!     let read = Prediction { remaining: 2.0, step, generation, ..Default::default() };
//!     scheduler.predict(idx, read);
//! }
//! scheduler.finish(idx);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The files, in the order a request meets them: [`request`], [`policy`] and [`policies`] (rank),
//! `order`, `fill` and `reserve` (choose), `blocks` (KV), `swap` (KV to the host and back),
//! [`plan`] (out). [`log`] records all of it. The crate trail-simulator runs this scheduler on a
//! virtual clock, and replays logs.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod block_sharing;
mod blocks;
mod brake;
mod config;
mod decision;
mod fill;
mod index_list;
mod key;
pub mod limits;
mod live_request;
pub mod log;
mod order;
pub mod plan;
pub mod policies;
pub mod policy;
mod prefill_limit;
mod prefill_pace;
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
pub use config::{ConfigError, Preemption, SchedulerConfig};
pub use decision::{Action, Decision};
pub use key::Key;
pub use limits::BLOCK_TOKENS;
pub use live_request::LiveRequest;
pub use log::{DecisionLog, LogHeader, LogSink, LoggedScheduler};
pub use plan::{Plan, PlanRow};
pub use policy::Policy;
pub use prefill_limit::{MIN_CHUNK_TOKENS, PrefillLimit};
pub use prefill_pace::{PrefillPace, PrefillWork};
pub use refusal::Refusal;
pub use request::{NewRequest, Phase, Prediction, RequestId, RequestIdx, RequestState};
pub use requests::Outstanding;
pub use reserve::Reserve;
pub use scheduler::Scheduler;
pub use step_cost::{ExpertCost, StepCost, StepWork};
pub use step_pace::{StepLine, StepPace};
pub use swap::{Copies, Finished, Transferred};
