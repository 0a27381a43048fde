//! Iteration-level scheduling of language-model requests by predicted remaining length.
//!
//! Pure: no clock, no I/O, no threads of its own. Time comes in as an argument, so the engine, a
//! simulator and a replay run this very code. Nothing allocates after construction.
//!
//! One step, seen from the engine:
//!
//! ```
//! use trail_scheduler::{NewRequest, Prediction, RequestId, Scheduler, SchedulerConfig};
//! use trail_scheduler::policies::Trail;
//!
//! let mut scheduler = Scheduler::new(SchedulerConfig::default(), Box::new(Trail::default()))?;
//! let slot = scheduler.submit(NewRequest {
//!     id: RequestId(1),
//!     prompt_tokens: 20,
//!     max_tokens: 3,
//!     arrival_s: 0.0,
//!     initial_prediction: Some(3.0),
//!     true_length: None,
//! })?;
//! for step in 0..3 {
//!     let plan = scheduler.plan(step, 0.0);
//!     assert!(plan.rows[0].sample); // ... the forward pass runs the rows, and samples ...
//!     scheduler.advance();
//!     let generation = scheduler.generation(slot);
//!     let read = Prediction { remaining: 2.0, step, generation, ..Default::default() };
//!     scheduler.predict(slot, read);
//! }
//! scheduler.finish(slot);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The files, in the order a request meets them: [`door`] (in from any thread), [`request`],
//! [`policy`] and [`policies`] (rank), `order` and `fill` (choose), `blocks` (KV), `swap` (KV aside and back), [`plan`] (out).

pub mod bench;
mod blocks;
mod config;
pub mod door;
mod fill;
mod key;
pub mod limits;
pub mod noise;
mod order;
pub mod plan;
pub mod policies;
pub mod policy;
mod refusal;
pub mod request;
mod requests;
mod scheduler;
mod swap;
mod sync;
mod transit;
#[cfg(test)]
mod twin;
pub mod workload;

pub use trail_base::rng;

pub use blocks::BlockId;
pub use config::{ConfigError, Preemption, SchedulerConfig};
pub use key::Key;
pub use limits::BLOCK_TOKENS;
pub use plan::{Plan, PlanRow};
pub use policy::Policy;
pub use refusal::Refusal;
pub use request::{NewRequest, Phase, Prediction, RequestId, RequestState, Slot};
pub use scheduler::Scheduler;
pub use swap::{Finished, Transferred};
