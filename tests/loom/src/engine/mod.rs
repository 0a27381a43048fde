//! The engine's structures, and substitutes for the types that they carry.

#[path = "../../../../runtime/src/engine/queue_permit.rs"]
#[cfg_attr(not(test), allow(dead_code, reason = "its models are tests"))]
mod queue_permit;
#[path = "../../../../runtime/src/engine/submit_queue.rs"]
#[allow(dead_code, reason = "faults are not modelled")]
mod submit_queue;
#[path = "../../../../runtime/src/engine/task_claims.rs"]
#[cfg_attr(not(test), allow(dead_code, reason = "its models are tests"))]
mod task_claims;

#[cfg(test)]
mod claim_models;
#[cfg(test)]
mod wake_up_models;

/// In place of the runtime's request: its share of the queue.
mod active {
    pub(super) struct ActiveRequest {
        #[allow(dead_code, reason = "released on drop")]
        pub(super) permit: super::queue_permit::QueuePermit,
    }
}

/// In place of the runtime's refusals.
mod admission {
    #[derive(Debug)]
    #[allow(dead_code, reason = "only that there is a refusal is looked at")]
    pub(super) enum SubmitError {
        Full { max_requests: u32 },
        FullBytes { max_bytes: u64 },
        TooLarge { bytes: u64, max_bytes: u64 },
    }
}

/// In place of the runtime's status of a request.
mod request_status {
    pub(super) struct RequestStatus;
}
