//! One typed function per kernel: fills the parameter struct as the plan says, and launches.

mod gemm;
mod group;
mod shuffle;

pub use gemm::{Norm, Operands, QkvOutput, ResidualOutput, logits, qkv, residual, swiglu, turns};
pub use group::{ActivationMap, group_qkv, group_residual, group_swiglu};
pub use shuffle::{RowOrder, Sources, shuffle};
