//! Driver and devices of the machine, and whether the kernels can run there, without opening one.

use super::device::Device;
use super::error::{CudaError, driver_error};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{DriverError, result};
use std::ffi::CStr;
use std::fmt;
use trail_ptx::Target;

/// Least driver: it takes the machine code (525).
pub const LEAST_DRIVER: DriverVersion = DriverVersion(12_000);
/// Least driver that compiles the text, PTX 8.4, for devices without machine code (550).
pub const LEAST_COMPILING_DRIVER: DriverVersion = DriverVersion(12_040);
/// Least compute capability: Ampere's.
pub const LEAST_COMPUTE: (i32, i32) = (8, 0);

/// Functions of the driver that the bindings would panic without: the first that are called, and
/// the newest.
const FUNCTIONS: [&str; 7] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDevicePrimaryCtxRelease_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuLaunchKernelEx",
    "cuStreamWriteValue32_v2",
];

/// Version of CUDA that a driver has, 1000 * major + 10 * minor, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion(pub i32);

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

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

    /// The reason why the kernels cannot run on it, under a driver of `version`.
    pub fn refusal(&self, version: DriverVersion) -> Option<String> {
        let ((major, minor), (least_major, least_minor)) = (self.compute, LEAST_COMPUTE);
        let device = format!("cuda:{} ({})", self.ordinal, self.name);
        if version < LEAST_DRIVER {
            return Some(format!(
                "the NVIDIA driver is of CUDA {version}, and the kernels need one of CUDA \
                 {LEAST_DRIVER} or newer (driver 525): update it"
            ));
        }
        if self.compute < LEAST_COMPUTE {
            return Some(format!(
                "{device} has compute capability {major}.{minor}, and the kernels need \
                 {least_major}.{least_minor} (Ampere) or newer"
            ));
        }
        if self.target().is_none() && version < LEAST_COMPILING_DRIVER {
            return Some(format!(
                "the driver must compile the kernels for {device}, which one of CUDA \
                 {LEAST_COMPILING_DRIVER} or newer can (driver 550), and it is of CUDA {version}: \
                 update it"
            ));
        }
        None
    }
}

/// Version of the driver. An error where there is none, or one that does not work.
pub fn driver_version() -> Result<DriverVersion, CudaError> {
    if !Device::is_present() {
        return Err(CudaError::Absent);
    }
    let is_missing = |name: &&&str| {
        // SAFETY: a library of the driver's name was found; a symbol is looked for and not called.
        unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
    };
    if let Some(name) = FUNCTIONS.iter().find(is_missing) {
        return Err(CudaError::Unusable(format!(
            "libcuda has no {name}: it is not an NVIDIA driver, or one older than driver 525"
        )));
    }
    let read = || {
        result::init()?;
        let mut version = 0;
        // SAFETY: the driver writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        Ok(DriverVersion(version))
    };
    read().map_err(driver_error("starting the NVIDIA driver"))
}

/// True if the first device can run the kernels, false if there is no device. An error says why the
/// device, or its driver, cannot.
pub fn usable() -> Result<bool, CudaError> {
    let no_device = DriverError(CUresult::CUDA_ERROR_NO_DEVICE);
    match check(0) {
        Ok(_) => Ok(true),
        Err(CudaError::Absent) => Ok(false),
        Err(CudaError::Driver { code, .. }) if code == no_device => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks that the device numbered `ordinal` can run the kernels. Returns the driver's version.
pub(super) fn check(ordinal: usize) -> Result<DriverVersion, CudaError> {
    let version = driver_version()?;
    match describe(ordinal)?.refusal(version) {
        Some(why) => Err(CudaError::Unusable(why)),
        None => Ok(version),
    }
}

/// All devices. An error where there is no driver, or one that does not work.
pub fn devices() -> Result<Vec<Found>, CudaError> {
    driver_version()?;
    let count = result::device::get_count().map_err(driver_error("counting the devices"))?;
    (0..count.max(0) as usize).map(describe).collect()
}

/// Name of the slot of the device numbered `ordinal`, as `0000:01:00.0`.
pub(super) fn pci_id(ordinal: usize) -> Option<String> {
    let device = result::device::get(i32::try_from(ordinal).ok()?).ok()?;
    let mut name = [0u8; 32];
    // SAFETY: the driver writes at most as many bytes as the length says.
    let code =
        unsafe { sys::cuDeviceGetPCIBusId(name.as_mut_ptr().cast(), name.len() as i32, device) };
    code.result().ok()?;
    CStr::from_bytes_until_nul(&name).ok()?.to_str().ok().map(str::to_owned)
}

fn describe(ordinal: usize) -> Result<Found, CudaError> {
    let read = || {
        let device = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
        let attribute = |attribute| {
            // SAFETY: the device exists.
            unsafe { result::device::get_attribute(device, attribute) }
        };
        Ok(Found {
            ordinal,
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
    read().map_err(driver_error(format!("reading the properties of cuda:{ordinal}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_devices_and_old_drivers_are_refused_with_the_reason() {
        let found = |compute| Found {
            ordinal: 1,
            name: "X".into(),
            memory_bytes: 1,
            compute,
            multiprocessors: 1,
        };
        let refusal = |compute, version| found(compute).refusal(DriverVersion(version));
        for (compute, version) in [((8, 0), 12_000), ((8, 9), 13_010), ((10, 0), 12_040)] {
            assert_eq!(refusal(compute, version), None, "{compute:?} {version}");
        }
        for (compute, version, says) in [
            ((8, 0), 11_080, "is of CUDA 11.8, and the kernels need one of CUDA 12.0"),
            ((7, 5), 12_040, "cuda:1 (X) has compute capability 7.5, and the kernels need 8.0"),
            ((11, 0), 12_030, "which one of CUDA 12.4 or newer can (driver 550), and it is of"),
        ] {
            let why = refusal(compute, version).expect("a reason");
            assert!(why.contains(says), "{why}");
        }
    }
}
