//! The CPU backend: one forward pass of a Llama-family model over a mixed batch.
//!
//! [`CpuForward::forward`] is a sequence of parallel regions (`pass`) on a thread pool ([`Pool`]).
//! Each region runs kernels (`kernels`) on parts of a few buffers and of the paged KV pool
//! ([`KvPool`]). Weights are read in their stored dtype from the memory map; everything else is
//! f32.
//!
//! Batch invariance: a row's logits depend only on its request's tokens, bit for bit: not on the
//! rest of the batch, the chunking, decode or prefill, or the number of threads.

mod aligned;
mod backend;
mod buffers;
mod fork_join_latch;
mod forward;
mod heads;
mod kernels;
mod kv;
mod linear;
mod pass;
mod pool;
mod regions;
mod rope;
mod shared;
mod tap;

pub use backend::CpuBackend;
pub use forward::{CpuForward, CpuOptions};
pub use kv::KvPool;
pub use pool::Pool;
pub use tap::Tap;
pub use trail_base::Isa;
use trail_base::simd;

#[cfg(test)]
mod tests;
