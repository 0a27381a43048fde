//! The engine on a CUDA device, end to end: answers are the CPU backend's, whatever is preempted,
//! swapped, recomputed or cancelled on the way, and whatever breaks, every request gets its
//! answer or a clear end, and no wrong token.

mod answers;
mod damaged;
mod faults;
mod flips;
mod hangs;
mod reuse;
mod subject;
