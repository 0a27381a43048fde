//! Modules from text and launches with plain values, for the emulator's own tests.

pub(crate) mod planted;
pub(crate) mod queue;

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};

/// The kernels of ptx/semantics.cu.
pub(crate) const SEMANTICS: &str = include_str!("../ptx/semantics.ptx");

/// Runs `body` with a context and those kernels.
pub(crate) fn with(body: impl FnOnce(&Gpu, &Module)) {
    let _session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(SEMANTICS).unwrap();
    body(&gpu, &module);
}

pub(crate) struct Gpu {
    /// Current on this thread for as long as it lives.
    _context: Arc<CudaContext>,
}

pub(crate) struct Module(pub(crate) sys::CUmodule);

/// A value of a launch: anything plain.
pub(crate) struct Argument(Vec<u8>);

impl<T: Copy> From<T> for Argument {
    fn from(value: T) -> Argument {
        let bytes = std::ptr::from_ref(&value).cast::<u8>();
        // SAFETY: `value` is alive and has as many bytes; tests pass integers and floats, which
        // have no padding.
        Argument(unsafe { std::slice::from_raw_parts(bytes, size_of::<T>()) }.to_vec())
    }
}

impl Gpu {
    pub(crate) fn new() -> Gpu {
        Gpu { _context: CudaContext::new(0).unwrap() }
    }

    pub(crate) fn load(&self, ptx: &str) -> Result<Module, DriverError> {
        let text = CString::new(ptx).unwrap();
        // SAFETY: text that ends in zero.
        unsafe { result::module::load_data(text.as_ptr().cast()) }.map(Module)
    }

    pub(crate) fn alloc(&self, bytes: usize) -> u64 {
        // SAFETY: no obligation; the memory is not read before it is written.
        unsafe { result::malloc_sync(bytes) }.unwrap()
    }

    pub(crate) fn free(&self, at: u64) {
        // SAFETY: allocated by `alloc`; a test that breaks this promise wants it found.
        unsafe { result::free_sync(at) }.unwrap();
    }

    pub(crate) fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let at = self.alloc(size_of_val(values));
        // SAFETY: `at` has as many bytes.
        unsafe { result::memcpy_htod_sync(at, values) }.unwrap();
        at
    }

    pub(crate) fn download<T: Copy + Default>(
        &self,
        at: u64,
        count: usize,
    ) -> Result<Vec<T>, DriverError> {
        let mut values = vec![T::default(); count];
        // SAFETY: the caller asks for what is there.
        unsafe { result::memcpy_dtoh_sync(&mut values, at) }?;
        Ok(values)
    }

    pub(crate) fn sync(&self) -> Result<(), DriverError> {
        // SAFETY: a current context.
        unsafe { sys::cuCtxSynchronize() }.result()
    }

    /// The driver's error code of the next synchronisation.
    pub(crate) fn sync_code(&self) -> CUresult {
        // SAFETY: a current context.
        unsafe { sys::cuCtxSynchronize() }
    }
}

impl Module {
    pub(crate) fn function(&self, name: &str) -> sys::CUfunction {
        // SAFETY: a loaded module.
        unsafe { result::module::get_function(self.0, CString::new(name).unwrap()) }.unwrap()
    }

    pub(crate) fn launch(
        &self,
        name: &str,
        blocks: u32,
        threads: u32,
        shared: u32,
        arguments: Vec<Argument>,
    ) -> Result<(), DriverError> {
        self.launch_grid(name, [blocks, 1, 1], threads, shared, arguments)
    }

    pub(crate) fn launch_grid(
        &self,
        name: &str,
        blocks: [u32; 3],
        threads: u32,
        shared: u32,
        arguments: Vec<Argument>,
    ) -> Result<(), DriverError> {
        self.launch_shape(std::ptr::null_mut(), name, blocks, threads, shared, arguments)
    }

    pub(crate) fn launch_on(
        &self,
        stream: sys::CUstream,
        name: &str,
        blocks: u32,
        threads: u32,
        shared: u32,
        arguments: Vec<Argument>,
    ) -> Result<(), DriverError> {
        self.launch_shape(stream, name, [blocks, 1, 1], threads, shared, arguments)
    }

    fn launch_shape(
        &self,
        stream: sys::CUstream,
        name: &str,
        blocks: [u32; 3],
        threads: u32,
        shared: u32,
        mut arguments: Vec<Argument>,
    ) -> Result<(), DriverError> {
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|a| a.0.as_mut_ptr().cast()).collect();
        let function = self.function(name);
        // SAFETY: the arguments are the kernel's, in number and size.
        unsafe {
            result::launch_kernel(
                function,
                blocks.into(),
                (threads, 1, 1),
                shared,
                stream,
                &mut pointers,
            )
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once.
        let _ = unsafe { result::module::unload(self.0) };
    }
}
