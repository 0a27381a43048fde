//! The loaded kernels of a device, as the driver describes them, beside what the compiler reported,
//! and those that the driver has to compile.

use super::device::{Code, Device};
use super::error::{CudaError, driver_error};
use crate::backend::Progress;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUfunction_attribute as Attribute;
use std::sync::PoisonError;
use trail_ptx::{Entry, Module, Resources};

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
        self.entry.on(target)
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

    /// Lets the driver compile the text of each module that steps launch, if it is not loaded and
    /// has no machine code for this device; the driver keeps what it compiled for the next start.
    /// It takes seconds a module, so `progress` is called before the first and after each.
    pub(super) fn compile_texts(
        &self,
        megakernel: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), CudaError> {
        let is_launched = |module: &&Module| match module.name {
            "ceiling" => false,
            "decode_megakernel" => megakernel,
            name => !name.starts_with("ladder/"),
        };
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let is_loaded = |entry: &trail_ptx::Entry| kernels.functions.contains_key(entry.name);
        let texts = trail_ptx::MODULES.iter().filter(|module| self.compiles(module));
        let texts = texts.filter(|module| !module.entries.iter().all(is_loaded));
        let texts: Vec<_> = texts.filter(is_launched).collect();
        let mut report = |done: usize| {
            progress(Progress { what: "kernels", done: done as u64, total: texts.len() as u64 });
        };
        if !texts.is_empty() {
            report(0);
        }
        for (at, module) in texts.iter().enumerate() {
            self.load(&mut kernels, module)?;
            report(at + 1);
        }
        Ok(())
    }

    /// Returns true if there is only the text of `module` for this device.
    fn compiles(&self, module: &Module) -> bool {
        let native = self.chip().target.and_then(|target| module.image(target));
        native.is_none() && module.portable_ptx().is_some()
    }
}
