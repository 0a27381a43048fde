//! The decision log: all inputs of a scheduler in order, its decisions beside them.
//!
//! A [`LoggedScheduler`] passes each call on to its [`Scheduler`](crate::Scheduler) and each event
//! to a [`LogSink`]. [`DecisionLog::parse`] reads the lines back. The crate trail-simulator makes
//! the same calls again and compares the decisions (`replay::Replay`).
//!
//! Format: one JSON object a line. The first line is the header: format, version, sizes, policy.
//! Each later line is one [`LogEvent`], named by its only key. Numbers are exact: a replay computes
//! with the same bits.

mod event;
mod header;
mod json_error;
mod logged_scheduler;
mod parse;
mod policy_line;

pub use event::LogEvent;
pub use header::{FORMAT, LogHeader, VERSION};
pub use logged_scheduler::{LogSink, LoggedScheduler};
pub use parse::{DecisionLog, LogError};
