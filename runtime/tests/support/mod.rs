//! What tests of the CUDA side share.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod cuda;
pub(crate) mod gemm;
pub(crate) mod tolerance;
