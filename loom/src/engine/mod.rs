//! The engine's structures, and stand-ins for the types that they carry.

#[path = "../../../runtime/src/engine/submit_queue.rs"]
#[cfg_attr(not(test), allow(dead_code, reason = "its models are tests"))]
mod submit_queue;
#[path = "../../../runtime/src/engine/task_claims.rs"]
#[cfg_attr(not(test), allow(dead_code, reason = "its models are tests"))]
mod task_claims;

#[cfg(test)]
mod claim_models;
#[cfg(test)]
mod wake_up_models;

/// In place of the runtime's request.
mod active {
    pub(super) struct ActiveRequest;
}

/// In place of the runtime's ticket.
mod handle {
    pub(super) struct Ticket;
}
