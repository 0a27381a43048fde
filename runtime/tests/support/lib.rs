//! Shared by the test programs of trail-runtime: models and files to test with, naive references,
//! devices.

pub mod cuda;
pub mod damaged;
pub mod gemm;
pub mod gguf;
pub mod golden;
pub mod small;
pub mod tolerance;
