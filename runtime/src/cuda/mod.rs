//! The CUDA side: hand-written kernels, planned as values and launched through the driver API.
//!
//! [`plan`] decides every geometry and is pure: it runs, and is tested, without a device. [`launch`] has one typed function a
//! kernel. [`Device`] is the thin layer over the driver, which is loaded at run time: a machine without CUDA builds and
//! starts all the same, and [`Device::is_present`] says whether there is a driver to ask.

mod device;
mod error;
pub mod launch;
pub mod plan;

pub use device::{Code, Device};
pub use error::{CudaError, LaunchError};
pub use trail_ptx::params;
