//! The thin layer over the driver: a context, the kernels in it, and the one place where a kernel
//! is launched.

use super::context::Context;
use super::error::{CudaError, LaunchCause, LaunchError, driver_error, opening_error};
use super::inventory::{self, DriverVersion};
use super::launch::Launch;
use super::plan::{Chip, LaunchPlan};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trail_ptx::{Entry, Module, Parameters, Target};

/// Least driver that records a launch which begins while its predecessor ends (545.23).
const RECORDS_OVERLAP: DriverVersion = DriverVersion(12_030);

/// Default of the longest wait for the device: a step takes less than a second.
pub const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);

/// A device with its kernels. Modules load when first needed, or all at once by
/// [`Device::load_all`].
pub struct Device {
    context: Arc<Context>,
    chip: Chip,
    driver: DriverVersion,
    /// The device launches blocks that wait for one another.
    is_cooperative: bool,
    pub(super) kernels: Mutex<Kernels>,
}

/// Functions by kernel name, and the modules they live in.
#[derive(Default)]
pub(super) struct Kernels {
    pub(super) functions: HashMap<&'static str, Function>,
    modules: Vec<sys::CUmodule>,
}

/// A loaded kernel.
#[derive(Clone, Copy)]
pub(super) struct Function {
    handle: sys::CUfunction,
    pub(super) entry: &'static Entry,
    pub(super) code: Code,
    launched: bool,
}

/// The form of a kernel that was given to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The machine code for the device's target.
    Cubin(Target),
    /// sm_80's text, which the driver compiled: there is no machine code for the device, or it did
    /// not take it.
    Ptx,
}

impl Code {
    /// The target that the code was compiled for here.
    pub fn target(self) -> Target {
        match self {
            Code::Cubin(target) => target,
            Code::Ptx => Target::Sm80,
        }
    }
}

// SAFETY: module and function handles are plain names of driver objects, valid on every thread
// while the context lives; the driver locks for itself.
unsafe impl Send for Kernels {}

impl Device {
    /// Returns true if there is a driver library. Without one nothing else here may be called: the
    /// bindings would panic. It is looked for on Linux alone, as the kernels never ran elsewhere.
    pub fn is_present() -> bool {
        // SAFETY: looks for a library by name and loads it; the driver's initialisers have no
        // preconditions.
        cfg!(target_os = "linux") && unsafe { sys::is_culib_present() }
    }

    /// Opens the device numbered `ordinal`, with the default timeout.
    pub fn open(ordinal: usize) -> Result<Device, CudaError> {
        Device::open_within(ordinal, DEVICE_TIMEOUT)
    }

    /// Opens the device numbered `ordinal`. A wait that is longer than `timeout` is an error.
    pub fn open_within(ordinal: usize, timeout: Duration) -> Result<Device, CudaError> {
        let driver = inventory::check(ordinal)?;
        let context = CudaContext::new(ordinal).map_err(opening_error("opening the device"))?;
        // SAFETY: this project orders its streams by its own events; the bindings' own tracking
        // would add events to every buffer, and calls that a graph capture refuses.
        unsafe { context.disable_event_tracking() };
        let chip = read_chip(&context).map_err(driver_error("reading the device's attributes"))?;
        let is_cooperative = context
            .attribute(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)
            .map_err(driver_error("reading the device's attributes"))?
            != 0;
        let context = Arc::new(Context::new(context, timeout));
        Ok(Device { context, chip, driver, is_cooperative, kernels: Mutex::default() })
    }

    /// The driver's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.context.driver()
    }

    /// The context that objects of this device hold.
    pub(super) fn shared(&self) -> &Arc<Context> {
        &self.context
    }

    /// The properties that plans depend on.
    pub fn chip(&self) -> &Chip {
        &self.chip
    }

    /// Version of the driver.
    pub fn driver(&self) -> DriverVersion {
        self.driver
    }

    /// Blocks of `plan` that the device holds at one time, by the code that it loaded; 0 of a
    /// cooperative launch if the device has none.
    pub fn resident_blocks(&self, plan: &LaunchPlan) -> Result<u32, CudaError> {
        if plan.cooperative && !self.is_cooperative {
            return Ok(0);
        }
        let function = self.function(plan, false)?;
        self.context.bind()?;
        let mut blocks = 0;
        // SAFETY: the function is loaded in this context; the driver writes one integer.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                function.handle,
                plan.block as i32,
                plan.shared_bytes as usize,
            )
        };
        let failed = |code| LaunchError { plan: *plan, cause: LaunchCause::Driver(code) };
        code.result().map_err(failed)?;
        Ok(blocks.max(0) as u32 * self.chip.multiprocessors)
    }

    /// Loads every module that has code for this device.
    pub fn load_all(&self) -> Result<(), CudaError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        for module in trail_ptx::MODULES {
            let loaded =
                module.entries.iter().all(|entry| kernels.functions.contains_key(entry.name));
            if !loaded && self.runs(module) {
                self.load(&mut kernels, module)?;
            }
        }
        Ok(())
    }

    /// The kernels that were launched, and the code that ran: what a test that passed has proven,
    /// and what a benchmark has timed.
    pub fn launched(&self) -> Vec<(&'static str, Code)> {
        let kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let launched = kernels.functions.iter().filter(|(_, function)| function.launched);
        launched.map(|(name, function)| (*name, function.code)).collect()
    }

    /// Returns true if this device can run `module`: Hopper's own kernels run on Hopper alone.
    pub fn runs(&self, module: &Module) -> bool {
        let native = self.chip.target.and_then(|target| module.image(target));
        native.is_some() || module.portable_ptx().is_some()
    }

    /// Launches a kernel on `stream`. Returns before the kernel has run.
    ///
    /// # Safety
    /// Every pointer in the parameters must be valid for what the kernel's header says it reads and
    /// writes, from now until the launch has completed in stream order, and no other work may
    /// access it in conflict.
    pub unsafe fn launch<P: Parameters>(
        &self,
        stream: &CudaStream,
        launch: &Launch<P>,
    ) -> Result<(), CudaError> {
        let Launch { plan, params } = launch;
        let failed = |cause| CudaError::from(LaunchError { plan: *plan, cause });
        let function = self.function(plan, true)?;
        if function.entry.params != P::NAME || function.entry.param_bytes as usize != size_of::<P>()
        {
            let expected = function.entry.params;
            return Err(failed(LaunchCause::Parameters { expected, given: P::NAME }));
        }
        self.context.bind()?;
        let mut arguments = [ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let mut attribute = attribute(plan, function.code, self.driver);
        let config = sys::CUlaunchConfig {
            gridDimX: plan.grid[0],
            gridDimY: plan.grid[1],
            gridDimZ: plan.grid[2],
            blockDimX: plan.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: plan.shared_bytes,
            hStream: stream.cu_stream(),
            attrs: attribute.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
            numAttrs: u32::from(attribute.is_some()),
        };
        // SAFETY: the function is loaded in this context; its one argument is `params`, whose type
        // was checked above; the driver copies it before it returns. The caller answers for the
        // pointers inside.
        let code = unsafe {
            sys::cuLaunchKernelEx(&config, function.handle, arguments.as_mut_ptr(), ptr::null_mut())
        };
        code.result().map_err(|code| failed(LaunchCause::Driver(code)))
    }

    /// Loads the module of the kernel that `plan` names, so that its first launch need not.
    pub fn ready(&self, plan: &LaunchPlan) -> Result<(), CudaError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if kernels.functions.contains_key(plan.kernel) {
            return Ok(());
        }
        let found = trail_ptx::find(plan.kernel);
        let (module, _) = found.ok_or(CudaError::NoCode { module: plan.kernel })?;
        self.load(&mut kernels, module)
    }

    /// The loaded kernel that `plan` names, noted as launched where it `is_launched`.
    fn function(&self, plan: &LaunchPlan, is_launched: bool) -> Result<Function, CudaError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = CudaError::NoCode { module: plan.kernel };
        if !kernels.functions.contains_key(plan.kernel) {
            let Some((module, _)) = trail_ptx::find(plan.kernel) else { return Err(missing) };
            self.load(&mut kernels, module)?;
        }
        let function = kernels.functions.get_mut(plan.kernel).ok_or(missing)?;
        function.launched |= is_launched;
        Ok(*function)
    }

    /// Loads `module`: the cubin of this chip where there is one that the driver takes, the PTX
    /// otherwise.
    pub(super) fn load(
        &self,
        kernels: &mut Kernels,
        module: &'static Module,
    ) -> Result<(), CudaError> {
        let fail = |code| opening_error(format!("loading {}", module.name))(code);
        self.context.bind()?;
        let image = self.chip.target.and_then(|target| module.image(target));
        let native = image.map(|image| (image.target, self.context.load(image.cubin)));
        let (handle, code) = match native {
            Some((target, Ok(handle))) => (handle, Code::Cubin(target)),
            // A driver that has no use for the machine code compiles the text.
            Some((_, Err(code))) if !is_wrong_image(&code) => return Err(fail(code)),
            _ => {
                let text = module.portable_ptx();
                let text = text.ok_or(CudaError::NoCode { module: module.name })?;
                (self.context.compile(module.name, text)?, Code::Ptx)
            }
        };
        kernels.modules.push(handle);
        for entry in module.entries {
            let function = self.prepare(handle, entry, code).map_err(fail)?;
            kernels.functions.insert(entry.name, function);
        }
        Ok(())
    }

    /// Finds `entry` in its module and opens all of the chip's shared memory to it. All kernels
    /// prefer it to L1, which none uses much: with one split, a multiprocessor need not drain
    /// between two kernels to change it, and the blocks that plans count on are resident.
    fn prepare(
        &self,
        module: sys::CUmodule,
        entry: &'static Entry,
        code: Code,
    ) -> Result<Function, DriverError> {
        let name = CString::new(entry.name).unwrap_or_default();
        // SAFETY: the module was loaded in the current context.
        let handle = unsafe { result::module::get_function(module, name)? };
        type Attribute = sys::CUfunction_attribute;
        let function = Function { handle, entry, code, launched: false };
        // Asked of the driver, which may have compiled the code.
        let fixed = function.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let dynamic = self.chip.shared_per_block.saturating_sub(fixed);
        for (attribute, value) in [
            (Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic as i32),
            (Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        ] {
            // SAFETY: the function is alive, the value within the device's limit.
            unsafe { result::function::set_function_attribute(handle, attribute, value)? };
        }
        Ok(function)
    }
}

impl Function {
    /// An attribute as the driver reports it; the context is the thread's.
    pub(super) fn attribute(&self, which: sys::CUfunction_attribute) -> Result<u32, DriverError> {
        // SAFETY: the function is alive while its device is.
        let value = unsafe { result::function::get_function_attribute(self.handle, which)? };
        Ok(value.max(0) as u32)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let kernels = self.kernels.get_mut().unwrap_or_else(PoisonError::into_inner);
        for module in kernels.modules.drain(..) {
            // SAFETY: each module was loaded once and is unloaded once; its functions go with
            // `self`.
            self.context.release("a module", || unsafe { result::module::unload(module) });
        }
    }
}

/// Launch attributes beside the geometry: that all blocks must be resident, or that the kernel may
/// begin while its predecessor ends and itself waits before it reads what that one wrote. Only
/// Hopper's machine code has that wait: the text of sm_80, which a driver may have compiled in its
/// place, begins when its predecessor has ended.
fn attribute(
    plan: &LaunchPlan,
    code: Code,
    driver: DriverVersion,
) -> Option<sys::CUlaunchAttribute> {
    // SAFETY: the type is plain data, for which zeros are valid.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    if plan.cooperative {
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
    } else if plan.overlaps && code == Code::Cubin(Target::Sm90a) && driver >= RECORDS_OVERLAP {
        attribute.id =
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
    } else {
        return None;
    }
    Some(attribute)
}

/// Returns true if the driver refused the code as not made for it, rather than as broken.
fn is_wrong_image(code: &DriverError) -> bool {
    matches!(code.0, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_IMAGE)
}

fn read_chip(context: &CudaContext) -> Result<Chip, DriverError> {
    let (major, minor) = context.compute_capability()?;
    let read = |attribute| Ok::<u32, DriverError>(context.attribute(attribute)?.max(0) as u32);
    Ok(Chip {
        target: Target::of_device(major, minor),
        multiprocessors: read(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: read(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_multiprocessor: read(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        l2_bytes: read(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_a_message() {
        if !Device::is_present() {
            let error = Device::open(0).err().expect("no driver, no device");
            let expected = match cfg!(target_os = "linux") {
                true => "no CUDA driver on this machine (libcuda was not found)",
                false => "CUDA runs on Linux alone: choose --device cpu",
            };
            assert_eq!(error.to_string(), expected);
        }
    }

    /// A driver that refuses the machine code compiles sm_80's text, which does not wait for its
    /// predecessor: it must not be let in early.
    #[test]
    fn only_the_machine_code_of_hopper_overlaps_its_predecessor() {
        let plan = crate::cuda::plan::step::embed(1, 64);
        assert!(plan.overlaps && !plan.cooperative);
        let id_by = |code, driver| attribute(&plan, code, driver).map(|attribute| attribute.id);
        let id = |code| id_by(code, RECORDS_OVERLAP);
        let overlap =
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        assert_eq!(id(Code::Cubin(Target::Sm90a)), Some(overlap));
        assert_eq!((id(Code::Cubin(Target::Sm80)), id(Code::Ptx)), (None, None));
        assert_eq!(id_by(Code::Cubin(Target::Sm90a), DriverVersion(12_020)), None);
    }
}
