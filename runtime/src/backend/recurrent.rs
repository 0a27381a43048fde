//! Recurrent states of a hybrid's requests, as a batch names them.
//!
//! A backend has a pool of states of one size ([`super::Backend::num_states`]): what gated delta
//! nets keep of all tokens of a request so far. A segment says in which state of the pool its
//! request's is before the first token, and where it is after the last one. Other states get copies
//! after tokens between: where a draft token may be the last one that is kept, or where a KV block
//! ends whose tokens another request may begin with.

/// The states of one segment; of no meaning for a model without gated delta nets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentState {
    /// The state before its first token, which is left as it is unless it is `after`; `None`: no
    /// token was before.
    pub before: Option<u32>,
    /// The state after its last token, that of no other segment.
    pub after: u32,
    /// Index of its first copy in [`super::Batch::state_copies`].
    pub first_copy: u32,
    /// Number of copies, in order of their tokens.
    pub copies: u32,
}

/// A copy of the state within a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// Tokens of the request up to the copy.
    pub end: u32,
    /// The state that gets the copy, that of no segment.
    pub state: u32,
}
