//! What can go wrong on the way to a kernel.

use super::plan::LaunchPlan;
use cudarc::driver::DriverError;
use std::error::Error;
use std::fmt;

/// A call to the driver that failed, or has no driver to go to.
#[derive(Debug)]
pub enum CudaError {
    /// No driver library on this machine.
    Absent,
    /// No code for this chip, of the module named.
    NoCode {
        /// The module.
        module: &'static str,
    },
    /// The driver refused.
    Driver {
        /// What was being done.
        doing: String,
        /// The driver's code.
        code: DriverError,
    },
    /// A kernel could not be launched.
    Launch(Box<LaunchError>),
}

/// A launch that failed: which kernel, on which shapes, and what the driver said.
#[derive(Debug)]
pub struct LaunchError {
    /// What was to be launched.
    pub plan: LaunchPlan,
    /// What was wrong with it.
    pub cause: LaunchCause,
}

/// Why a launch failed.
#[derive(Debug)]
pub enum LaunchCause {
    /// The kernel takes another parameter struct.
    Parameters {
        /// What the kernel takes.
        expected: &'static str,
        /// What it was given.
        given: &'static str,
    },
    /// The driver's code.
    Driver(DriverError),
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::Absent => {
                write!(f, "no CUDA driver on this machine (libcuda was not found)")
            }
            CudaError::NoCode { module } => {
                write!(f, "no code of {module} that this device can run")
            }
            CudaError::Driver { doing, code } => write!(f, "{doing}: {}", describe(code)),
            CudaError::Launch(error) => error.fmt(f),
        }
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

/// The driver's name of a code, without asking the driver, which may be lost.
fn describe(code: &DriverError) -> String {
    format!("{:?} ({})", code.0, code.0 as u32)
}
