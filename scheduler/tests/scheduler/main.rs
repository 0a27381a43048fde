//! The scheduler through its public interface.

mod decisions;
mod policy_hooks;
mod reserve;
mod scheduling;
mod swapping;
