//! Errors of the CUDA side.

use super::plan::LaunchPlan;
use crate::backend::Fault;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// A call to the driver that failed, or has no driver to go to.
#[derive(Debug)]
pub enum CudaError {
    /// No driver library on this machine, or none that is looked for.
    Absent,
    /// No code for this chip, of the module named.
    NoCode {
        /// The module.
        module: &'static str,
    },
    /// The driver refused.
    Driver {
        /// The operation that failed, as a participle phrase.
        operation: String,
        /// The driver's code.
        code: DriverError,
    },
    /// There is too little memory.
    OutOfMemory(OutOfMemory),
    /// The kernels cannot run on this device, or with its driver, for the reason given.
    Unusable(String),
    /// The kernels cannot run this model.
    Unsupported {
        /// The unsupported property.
        what: String,
        /// The supported alternatives.
        supported: String,
    },
    /// The device was not done in time.
    Hangs {
        /// The operation that the host waited in, as a participle phrase.
        what: String,
        /// The longest wait.
        timeout: Duration,
    },
    /// The device has done all its work, and a step's tokens are not there.
    Silent {
        /// The step's number.
        step: u64,
    },
    /// The caller broke a promise, or memory broke under it.
    Contract {
        /// Description of the violation.
        what: String,
    },
    /// A kernel could not be launched.
    Launch(Box<LaunchError>),
}

/// An allocation for which there was no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Purpose of the allocation.
    pub what: &'static str,
    /// Its bytes.
    pub needed: usize,
    /// Bytes that the device has free; `None` for memory of the host.
    pub free: Option<usize>,
    /// Advice that the message ends with.
    pub help: &'static str,
}

impl CudaError {
    /// True if a step that could not be recorded as a graph can be launched kernel by kernel: there
    /// was no memory for the graph, or the driver does not record such a step.
    pub(super) fn is_about_recording(&self) -> bool {
        let code = match self {
            CudaError::Driver { code, .. } => code,
            CudaError::Launch(error) => match &error.cause {
                LaunchCause::Driver(code) => code,
                LaunchCause::Parameters { .. } => return false,
            },
            _ => return false,
        };
        let first = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32;
        let last = CUresult::CUDA_ERROR_CAPTURED_EVENT as u32;
        matches!(
            code.0,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY
                | CUresult::CUDA_ERROR_NOT_SUPPORTED
                | CUresult::CUDA_ERROR_NOT_PERMITTED
        ) || (first..=last).contains(&(code.0 as u32))
    }

    /// The same error; `help` replaces the advice of an out-of-memory error.
    pub fn or_try(self, help: &'static str) -> CudaError {
        match self {
            CudaError::OutOfMemory(found) => CudaError::OutOfMemory(OutOfMemory { help, ..found }),
            other => other,
        }
    }
}

/// A launch that failed: which kernel, on which shapes, and what the driver said.
#[derive(Debug)]
pub struct LaunchError {
    /// Plan of the launch.
    pub plan: LaunchPlan,
    /// Cause of the failure.
    pub cause: LaunchCause,
}

/// Why a launch failed.
#[derive(Debug)]
pub enum LaunchCause {
    /// The kernel takes another parameter struct.
    Parameters {
        /// Name of the struct that the kernel takes.
        expected: &'static str,
        /// Name of the struct that was given.
        given: &'static str,
    },
    /// The driver's code.
    Driver(DriverError),
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::Absent if !cfg!(target_os = "linux") => {
                f.write_str("CUDA runs on Linux alone: choose --device cpu")
            }
            CudaError::Absent => {
                f.write_str("no CUDA driver on this machine (libcuda was not found)")
            }
            CudaError::NoCode { module } => {
                write!(f, "no code of {module} that this device can run")
            }
            CudaError::Driver { operation, code } => write!(f, "{operation}: {}", describe(code)),
            CudaError::OutOfMemory(error) => error.fmt(f),
            CudaError::Unusable(what) | CudaError::Contract { what } => f.write_str(what),
            CudaError::Unsupported { what, supported } => {
                write!(f, "{what}: the CUDA kernels take {supported}; --device cpu runs it")
            }
            CudaError::Hangs { what, timeout } => write!(
                f,
                "{what}: the GPU was not done in {} s (--device-timeout) and hangs: start the \
                 program again",
                timeout.as_secs_f64()
            ),
            CudaError::Silent { step } => {
                write!(f, "the device ended step {step} without its results")
            }
            CudaError::Launch(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { what, needed, free, help } = self;
        match free {
            Some(free) => {
                write!(f, "out of device memory for {what}: {needed} bytes needed, {free} free")?;
            }
            None => write!(f, "out of pinned host memory for {what}: {needed} bytes needed")?,
        }
        write!(f, "; {help}")
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            LaunchCause::Parameters { expected, given } => {
                write!(f, "{}: takes {expected}, was given {given}", self.plan)
            }
            LaunchCause::Driver(code) => write!(f, "{}: {}", self.plan, describe(code)),
        }
    }
}

impl Error for CudaError {}
impl Error for LaunchError {}

impl From<LaunchError> for CudaError {
    fn from(error: LaunchError) -> Self {
        CudaError::Launch(Box::new(error))
    }
}

impl From<CudaError> for Fault {
    fn from(error: CudaError) -> Self {
        Fault(error.to_string())
    }
}

/// The error of a driver's code; `operation` is a participle phrase.
pub(crate) fn driver_error(operation: impl Into<String>) -> impl FnOnce(DriverError) -> CudaError {
    move |code| CudaError::Driver { operation: operation.into(), code }
}

/// The same of a call that brings the context or a kernel to the device: a device that is full, or
/// that another program holds, cannot be used.
pub(super) fn opening_error(operation: impl Into<String>) -> impl FnOnce(DriverError) -> CudaError {
    move |code| {
        let help = match code.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => "the GPU is full: free it of other programs",
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
                "another program holds the GPU, or its compute mode is prohibited (nvidia-smi)"
            }
            _ => return driver_error(operation)(code),
        };
        CudaError::Unusable(format!("{}: {}; {help}", operation.into(), describe(&code)))
    }
}

/// Returns true if the code means that there is too little memory.
pub(super) fn is_out_of_memory(code: &DriverError) -> bool {
    code.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// The driver's name of a code, without asking the driver, which may be lost.
fn describe(code: &DriverError) -> String {
    let help = match code.0 {
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "; the library found is the toolkit's stub: take its folder (.../stubs) out of \
             LD_LIBRARY_PATH"
        }
        _ => "",
    };
    format!("{:?} ({}){help}", code.0, code.0 as u32)
}
