#![doc = include_str!("../README.md")]

pub(crate) mod driver;
pub(crate) mod exec;
pub mod harness;
pub(crate) mod memory;
pub(crate) mod ptx;
pub(crate) mod report;

pub use harness::{Chip, Emulator, Failing, Order, Session, session};
pub use ptx::check_ptx;
