//! The CUDA side: hand-written kernels, planned as values and launched through the driver API.
//!
//! [`plan`] decides every geometry and is pure: it runs, and is tested, without a device.
//! [`launch`] has one typed function a kernel. [`memory`] is what is owned on the device.
//! [`Device`] is the thin layer over the driver, which is loaded at run time: a machine without
//! CUDA builds and starts all the same, and [`Device::is_present`] says whether there is a driver
//! to ask.

mod backend;
mod context;
mod device;
mod error;
mod graphs;
pub mod inventory;
pub mod kv;
pub mod launch;
pub mod memory;
pub mod plain;
pub mod plan;
pub mod queue;
mod sample_results;
mod step;
pub mod step_metadata;
pub mod swap;
mod tap;
mod trace;
pub mod weights;

pub use backend::{CudaBackend, CudaOptions};
pub use device::{Code, Device};
pub use error::{CudaError, LaunchError, OutOfMemory};
pub use kv::KvPool;
pub use memory::{DeviceBuffer, PinnedBuffer, Priority};
pub use step::StepLimits;
pub use swap::{Swap, SwapOptions};
pub use tap::TapMode;
pub use trace::{Anchor, StepTimes, TapTimes};
pub use trail_ptx::params;
pub use weights::DeviceWeights;

use error::is_out_of_memory;
