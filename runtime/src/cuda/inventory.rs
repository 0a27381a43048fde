//! The devices of the machine, without opening one.

use super::device::Device;
use super::error::{CudaError, driver_error};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, result};
use trail_ptx::Target;

/// Properties of a device, as the driver reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of the device, as in `cuda:ordinal`.
    pub ordinal: usize,
    /// Marketing name of the device.
    pub name: String,
    /// Device memory, bytes.
    pub memory_bytes: usize,
    /// Compute capability, (major, minor).
    pub compute: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

impl Found {
    /// The family whose machine code it runs; `None`: the driver compiles the text for it.
    pub fn target(&self) -> Option<Target> {
        Target::of_device(self.compute.0, self.compute.1)
    }
}

/// Devices that the driver has; 0 without a driver, or with one that does not work.
pub fn count() -> usize {
    let count = || CudaContext::device_count().map_or(0, |count| count.max(0) as usize);
    if Device::is_present() { count() } else { 0 }
}

/// All devices. An error where there is no driver, or one that does not work.
pub fn devices() -> Result<Vec<Found>, CudaError> {
    if !Device::is_present() {
        return Err(CudaError::Absent);
    }
    let count = CudaContext::device_count().map_err(driver_error("counting the devices"))?;
    (0..count).map(describe).collect()
}

fn describe(ordinal: i32) -> Result<Found, CudaError> {
    let asking = driver_error("asking a device what it is");
    let read = || {
        let device = result::device::get(ordinal)?;
        let attribute = |attribute| {
            // SAFETY: the device exists.
            unsafe { result::device::get_attribute(device, attribute) }
        };
        Ok(Found {
            ordinal: ordinal as usize,
            name: result::device::get_name(device)?,
            // SAFETY: the device exists.
            memory_bytes: unsafe { result::device::total_mem(device)? },
            compute: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(0)
                as u32,
        })
    };
    read().map_err(asking)
}
