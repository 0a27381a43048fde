//! Launches as values: a kernel's plan, and the parameter struct of `kernels/common/params.h`.
//!
//! The caller fills the struct with addresses and with the sizes that no plan knows; a function for
//! each kernel whose plan decides more fills in the rest. Nothing here touches the device.
//! [`crate::cuda::device::Device::launch`] is the one place that does: it checks that the kernel
//! which the plan names takes the struct that the launch has, and is unsafe because of the
//! addresses inside.

mod attention;
mod gemm;
mod hopper;
mod megakernel;
mod sampling;
mod shuffle;

pub use attention::{
    attention_decode, attention_merge, attention_prefill, attention_wgmma, window,
};
pub use gemm::{logits, qkv, residual, rope_freqs, swiglu};
pub use hopper::{activation_map, pool_map, wgmma_qkv, wgmma_residual, wgmma_swiglu};
pub use megakernel::megakernel;
pub use sampling::{row_sampling, sample, sampled};
pub use shuffle::{RowOrder, Sources, shuffle};

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
