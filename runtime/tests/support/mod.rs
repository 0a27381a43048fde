//! Shared by the tests of the CUDA side.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod cuda;
pub(crate) mod damaged;
pub(crate) mod gemm;
pub(crate) mod tolerance;
