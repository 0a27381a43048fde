//! The CPU backend: one forward pass of a Llama-family model over a mixed batch.
//!
//! [`CpuForward::forward`] is a sequence of parallel regions (`pass`) on a pool of threads ([`Pool`]),
//! each of which is some kernels (`kernels`) on pieces of a few buffers and of the paged KV pool
//! ([`KvPool`]). Weights are read in their stored dtype where they lie; all else is f32.
//!
//! A row's logits depend on its request's tokens and on nothing else, bit for bit: not on the
//! batch, the chunking, decode or prefill, or the number of threads.

mod aligned;
mod backend;
mod buffers;
mod forward;
mod gate;
mod heads;
mod kernels;
mod kv;
mod linear;
mod pass;
mod pool;
mod regions;
mod rope;
mod shared;
mod simd;
mod tap;

pub use backend::CpuBackend;
pub use forward::{CpuForward, CpuOptions};
pub use kv::KvPool;
pub use pool::Pool;
pub use tap::Tap;
pub use trail_base::Isa;

#[cfg(test)]
mod tests;
