//! The loaded kernels of a device, as the driver describes them, beside what the compiler reported.

use super::device::{Code, Device};
use super::error::{CudaError, driver_error};
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUfunction_attribute as Attribute;
use std::sync::PoisonError;
use trail_ptx::{Entry, Resources};

/// A loaded kernel.
#[derive(Clone, Copy, Debug)]
pub struct LoadedKernel {
    /// Its name.
    pub name: &'static str,
    /// The form that was given to the driver.
    pub code: Code,
    /// 32-bit registers per thread.
    pub registers: u32,
    /// Statically allocated shared memory, bytes per block.
    pub shared_bytes: u32,
    /// Local memory, bytes per thread.
    pub local_bytes: u32,
    entry: &'static Entry,
}

impl LoadedKernel {
    /// The compiler's report of the same machine code; `None` where the driver compiled it.
    pub fn reported(&self) -> Option<&'static Resources> {
        let Code::Cubin(target) = self.code else { return None };
        self.entry.resources.iter().find(|found| found.target == target)
    }
}

impl Device {
    /// The kernels loaded so far, by name.
    pub fn kernels(&self) -> Result<Vec<LoadedKernel>, CudaError> {
        self.shared().bind()?;
        let kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loaded = Vec::with_capacity(kernels.functions.len());
        for (&name, function) in &kernels.functions {
            let describe = || {
                Ok::<_, DriverError>(LoadedKernel {
                    name,
                    code: function.code,
                    registers: function.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                    shared_bytes: function
                        .attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
                    local_bytes: function
                        .attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
                    entry: function.entry,
                })
            };
            loaded.push(describe().map_err(driver_error("asking for a kernel's attributes"))?);
        }
        loaded.sort_by_key(|kernel| kernel.name);
        Ok(loaded)
    }
}
