//! The scheduler through its public interface.

mod decisions;
mod multi_turn;
mod policy_hooks;
mod reserve;
mod scheduling;
mod swapping;
