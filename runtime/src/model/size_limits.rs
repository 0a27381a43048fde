//! Upper bounds of a configuration's sizes.

// Several times the largest Llama, and small enough that no product of
// sizes overflows.
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_LAYERS: usize = 1 << 10;
pub(super) const MAX_HEADS: usize = 1 << 12;
pub(super) const MAX_EXPERTS: usize = 1 << 12;
pub(super) const MAX_HEAD_DIM: usize = 1 << 10;
pub(super) const MAX_VOCAB: usize = 1 << 24;
pub(super) const MAX_CONTEXT: usize = 1 << 28;
// A weight's bytes fit in a usize; positions fit in a u32.
const _: () = assert!((MAX_HEADS * MAX_HEAD_DIM).checked_mul(4 * MAX_WIDTH).is_some());
const _: () = assert!(MAX_VOCAB.checked_mul(4 * MAX_WIDTH).is_some());
const _: () = assert!(MAX_CONTEXT <= u32::MAX as usize);
