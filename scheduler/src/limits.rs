//! Bounds of the scheduler, and the relations between them that the code relies on.

/// Tokens per KV block.
pub const BLOCK_TOKENS: u32 = 16;

/// Most sequences one step may hold.
pub const MAX_RUNNING: u32 = 4096;

/// Most requests (running, paused and waiting) one scheduler may hold.
pub const MAX_REQUESTS: u32 = 1 << 20;

/// Longest context, in tokens, a request may be given.
pub const MAX_CONTEXT: u32 = 1 << 20;

/// Levels of the skip list that keeps the requests outside the batch in rank order.
pub const ORDER_LEVELS: usize = 10;

/// Steps after which a prediction is too late to be counted down exactly, and is dropped.
pub const LATE_STEPS_MAX: u64 = 64;

/// KV blocks that hold `tokens` tokens.
pub const fn blocks_for(tokens: u32) -> u32 {
    tokens.div_ceil(BLOCK_TOKENS)
}

const _: () = {
    assert!(BLOCK_TOKENS.is_power_of_two());
    assert!(MAX_RUNNING <= MAX_REQUESTS);
    // u32::MAX is the skip list's end of list.
    assert!(MAX_REQUESTS < u32::MAX);
    // One node in four climbs a level, so the top level holds one node when the list is full.
    assert!(1 << (2 * ORDER_LEVELS) >= MAX_REQUESTS as u64);
    // A request's recent samples are one bit per step in a u64.
    assert!(LATE_STEPS_MAX == u64::BITS as u64);
    // Positions are u32, and a prompt plus its output must not wrap.
    assert!(MAX_CONTEXT < u32::MAX / 2);
};
