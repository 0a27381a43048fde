//! The CPU backend: one forward pass of a Llama-family model over a mixed batch.
//!
//! [`CpuForward::forward`] is a sequence of parallel regions (`pass`) on a thread pool ([`Pool`]).
//! Each region runs kernels ([`trail_cpu_kernels`]) on parts of a few buffers and of the paged KV
//! pool ([`KvPool`]). Weights are read in their stored dtype from the memory map; everything else
//! is f32, but activations for quantized and for bf16 weights, which [`Compute::Fast`] narrows to 8
//! bits and to bf16.
//!
//! Batch invariance: a row's logits depend only on its request's tokens, bit for bit: not on the
//! rest of the batch, the chunking, decode or prefill, or the number of threads.

mod adapted;
mod affinity;
mod attend;
mod backend;
mod buffers;
mod check;
mod claims;
mod compute;
mod delta_net;
mod draft;
mod fork_join_latch;
mod forward;
mod heads;
mod kv;
mod linear;
mod mixture;
mod narrow;
mod options;
mod pass;
mod pool;
mod regions;
mod repack;
mod rope;
mod routes;
mod samplers;
mod states;
mod tap;

pub(crate) use affinity::describe;
pub use affinity::placement;
pub use backend::{CpuBackend, SharedPool};
pub use compute::Compute;
pub use forward::CpuForward;
pub use kv::KvPool;
pub use options::CpuOptions;
pub use pool::Pool;
pub use samplers::Samplers;
pub use tap::Tap;
pub use trail_platform::Isa;
use trail_platform::simd;

/// The instruction of products in 8 bits with the registers of `isa`, `avx512_vnni` for instance:
/// see [`Compute::Fast`]. Fails if this CPU does not have `isa`.
pub fn byte_products(isa: Isa) -> Result<&'static str, String> {
    trail_cpu_kernels::Q8Kernels::select(isa).map(|kernels| kernels.name)
}

/// The instruction of products in bf16 with the registers of `isa`, `avx512_bf16` for instance;
/// `None` if f32 is faster on this CPU.
pub fn bf16_products(isa: Isa) -> Option<&'static str> {
    trail_cpu_kernels::PairKernels::fastest(isa).map(|kernels| kernels.name)
}

#[cfg(test)]
mod tests;
