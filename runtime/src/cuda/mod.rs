//! The CUDA backend: hand-written kernels, planned as values and launched through the driver API.
//!
//! `plan` decides every geometry and is pure: it runs, and is tested, without a device. `launch`
//! has one typed function a kernel. `memory` is what is owned on the device, `queue` a stream of
//! launches and copies. `Device` is the thin layer over the driver, which is loaded at run time: a
//! machine without CUDA builds and starts all the same.
//!
//! Those modules are public under the feature `low-level`, for kernel tests and benchmarks, and
//! private otherwise.

mod backend;
mod context;
mod device;
mod error;
mod graphs;
pub mod inventory;
mod loaded;
mod near_cpus;
mod options;
mod sample_results;
#[cfg_attr(not(feature = "low-level"), allow(unreachable_pub))]
mod step;
mod tap;
mod trace;

#[cfg(feature = "low-level")]
pub mod kv;
#[cfg(feature = "low-level")]
pub mod launch;
#[cfg(feature = "low-level")]
pub mod memory;
#[cfg(feature = "low-level")]
pub mod plain;
#[cfg(feature = "low-level")]
pub mod plan;
#[cfg(feature = "low-level")]
pub mod queue;
#[cfg(feature = "low-level")]
pub mod step_metadata;
#[cfg(feature = "low-level")]
pub mod swap;
#[cfg(feature = "low-level")]
pub mod weights;

#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod kv;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod launch;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod memory;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod plain;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod plan;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod queue;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod step_metadata;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod swap;
#[cfg(not(feature = "low-level"))]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "the low-level face is off")]
mod weights;

pub use backend::CudaBackend;
pub use device::DEVICE_TIMEOUT;
pub use error::{CudaError, LaunchError, OutOfMemory};
pub use plan::order::OrderChoice;
pub use tap::TapMode;
pub use trace::{Anchor, StepTimes, TapTimes};
pub use weights::device_bytes as weights_bytes;

#[cfg(feature = "low-level")]
mod low_level {
    pub use super::device::{Code, Device};
    pub use super::kv::KvPool;
    pub use super::loaded::LoadedKernel;
    pub use super::memory::{DeviceBuffer, PinnedBuffer, Priority};
    pub use super::step::StepLimits;
    pub use super::swap::{Swap, SwapOptions};
    pub use super::weights::DeviceWeights;
    pub use trail_ptx::params;
}
#[cfg(feature = "low-level")]
pub use low_level::*;
pub use options::CudaOptions;
