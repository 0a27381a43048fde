//! Launches as values: one typed function per kernel fills the parameter struct as the plan says.
//!
//! Nothing here touches the device. [`crate::cuda::device::Device::launch`] is the one place that
//! does: it checks that the kernel which the plan names takes the struct that the launch has, and
//! is unsafe because of the addresses inside.

mod attention;
#[cfg(feature = "low-level")]
mod bench;
mod gemm;
mod hopper;
mod megakernel;
mod sampling;
mod shuffle;
mod step;

pub use attention::{
    DecodeRows, KvView, PrefillRows, attention_decode, attention_merge, attention_prefill,
};
#[cfg(feature = "low-level")]
pub use bench::{attention_rung, ceiling_mma, ceiling_read};
pub use gemm::{
    HeadTerms, Norm, Operands, QkvOutput, ResidualOutput, logits, qkv, residual, rope_freqs, swiglu,
};
pub use hopper::{
    ActivationMap, PoolMap, attention_wgmma, wgmma_qkv, wgmma_residual, wgmma_swiglu,
};
pub use megakernel::{MegakernelBuffers, megakernel, megakernel_layer};
pub use sampling::{RowPlace, SamplerBuffers, row_sampling, sample, sampled, token_counts};
pub use shuffle::{RowOrder, Sources, shuffle};
pub use step::{EmbedBuffers, ProbeBuffers, TapSegment, apply_diffs, embed, probe, tap_mean};

use super::plan::LaunchPlan;
use trail_ptx::Parameters;

/// One launch of a kernel: its geometry, and the parameters of the kernel's family.
#[derive(Clone, Copy, Debug)]
pub struct Launch<P: Parameters> {
    /// Kernel and geometry.
    pub plan: LaunchPlan,
    /// The kernel's one argument.
    pub params: P,
}
