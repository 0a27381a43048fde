//! The driver's context, errors of `Drop` that are reported by the next call, and bounded waits for
//! the device.

use super::error::{CudaError, driver_error, opening_error};
use cudarc::driver::sys::{self, CUjit_option, CUmodule};
use cudarc::driver::{CudaContext, DriverError, result};
use std::ffi::CString;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Looks at the device that yield, before the thread sleeps between looks.
const YIELDS: u32 = 1000;
/// Most bytes of the message of the driver's compiler.
const LOG_BYTES: usize = 2048;
/// Sleep between looks.
const SLEEP: Duration = Duration::from_micros(100);

/// A wait for the step of this number, as a participle phrase: made into text by an error alone.
#[derive(Clone, Copy)]
pub(super) struct StepWait(pub(super) u64);

impl fmt::Display for StepWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiting for step {}", self.0)
    }
}

/// Shared owner of the driver's context; every object of the driver holds it, so it goes last.
pub(super) struct Context {
    driver: Arc<CudaContext>,
    /// The first error of a `Drop` that was not reported yet: what follows one is rarely another
    /// cause.
    parked: Mutex<Option<CudaError>>,
    /// True if `parked` has an error: read without the lock on the fast path.
    is_parked: AtomicBool,
    /// Longest wait for the device.
    timeout: Duration,
    /// True once a wait was that long: the device hangs, and calls of the driver would block.
    hangs: AtomicBool,
}

impl Context {
    pub(super) fn new(driver: Arc<CudaContext>, timeout: Duration) -> Context {
        Context {
            driver,
            parked: Mutex::new(None),
            is_parked: AtomicBool::new(false),
            timeout,
            hangs: AtomicBool::new(false),
        }
    }

    /// Waits until `is_done`; `what` says in an error what for. A device that is not done within
    /// the timeout hangs.
    pub(super) fn wait(
        &self,
        what: impl fmt::Display + Copy,
        mut is_done: impl FnMut() -> Result<bool, DriverError>,
    ) -> Result<(), CudaError> {
        let begin = Instant::now();
        for look in 0.. {
            if is_done().map_err(|code| driver_error(what.to_string())(code))? {
                return Ok(());
            }
            self.check_time(begin, what)?;
            if look < YIELDS { thread::yield_now() } else { thread::sleep(SLEEP) }
        }
        Ok(())
    }

    /// Fails if a wait that began at `begin` has been too long.
    pub(super) fn check_time(
        &self,
        begin: Instant,
        what: impl fmt::Display,
    ) -> Result<(), CudaError> {
        if begin.elapsed() < self.timeout && !self.hangs() {
            return Ok(());
        }
        self.hangs.store(true, Ordering::Release);
        Err(CudaError::Hangs { what: what.to_string(), timeout: self.timeout })
    }

    /// True once a wait for the device was too long.
    pub(super) fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Acquire)
    }

    /// The bindings' context.
    pub(super) fn driver(&self) -> &Arc<CudaContext> {
        &self.driver
    }

    /// Makes the context the calling thread's; first reports what is parked.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        match self.take_parked() {
            Some(error) => Err(error),
            None => self.driver.bind_to_thread().map_err(driver_error("binding the context")),
        }
    }

    /// Loads machine code; the context is the thread's.
    pub(super) fn load(&self, image: &[u8]) -> Result<CUmodule, DriverError> {
        // In the program it may lie at any byte; an ELF file is read by words.
        let mut words = vec![0u64; image.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..image.len()].copy_from_slice(image);
        // SAFETY: the words are an ELF file, and alive for the call.
        unsafe { result::module::load_data(words.as_ptr().cast()) }
    }

    /// Lets the driver compile PTX text; the context is the thread's. The message of the
    /// driver's compiler is part of the error.
    pub(super) fn compile(&self, name: &str, text: &str) -> Result<CUmodule, CudaError> {
        let (text, mut log) = (CString::new(text).unwrap_or_default(), vec![0u8; LOG_BYTES]);
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG_BYTES)];
        let (count, mut module) = (options.len() as u32, ptr::null_mut());
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: the text ends in a zero byte; the log is as large as the second option says; all
        // live for the call.
        let code = unsafe {
            sys::cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), count, options, values)
        };
        code.result().map(|()| module).map_err(|code| {
            let message = log.split(|&byte| byte == 0).next().unwrap_or_default();
            let message = String::from_utf8_lossy(message);
            let words: Vec<&str> = message.split_whitespace().collect();
            let operation = match words.is_empty() {
                true => format!("compiling {name}"),
                false => format!("compiling {name} (the driver's compiler: {})", words.join(" ")),
            };
            opening_error(operation)(code)
        })
    }

    /// Gives something back to the driver, from a `Drop`: an error is parked. A device that hangs
    /// keeps it.
    pub(super) fn release(&self, what: &str, release: impl FnOnce() -> Result<(), DriverError>) {
        if self.hangs() {
            return;
        }
        // Not `bind_to_thread`: that would report an older error instead of binding.
        // SAFETY: the context lives as long as `self`.
        let bound = unsafe { result::ctx::set_current(self.driver.cu_ctx()) };
        // A failed binding does not excuse the attempt: the context may be current all the same.
        if let Err(code) = bound.and(release()) {
            let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
            parked.get_or_insert_with(|| driver_error(format!("freeing {what}"))(code));
            self.is_parked.store(true, Ordering::Release);
        }
    }

    /// Waits until `is_done`, within the timeout and whatever is parked: for a `Drop` whose memory
    /// must not be freed under a kernel. A device that is lost has stopped, and its error was
    /// reported.
    pub(super) fn drain(&self, is_done: impl FnMut() -> Result<bool, DriverError>) {
        if self.hangs() {
            return;
        }
        // SAFETY: the context lives as long as `self`.
        let _ = unsafe { result::ctx::set_current(self.driver.cu_ctx()) };
        let _ = self.wait("the last work of the device", is_done);
    }

    /// The same of all streams, which were drained: of one that cannot be asked, too.
    pub(super) fn synchronize_regardless(&self) {
        if !self.hangs() {
            let _ = result::ctx::synchronize();
        }
    }

    /// The parked error, if any; it counts as reported then.
    pub(super) fn take_parked(&self) -> Option<CudaError> {
        let bindings = || {
            let code = self.driver.check_err().err()?;
            Some(driver_error("giving a stream, an event or a graph back")(code))
        };
        if !self.is_parked.swap(false, Ordering::Acquire) {
            return bindings();
        }
        let own = self.parked.lock().unwrap_or_else(PoisonError::into_inner).take();
        own.or_else(bindings)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.hangs() {
            // Its release would wait for the device.
            std::mem::forget(self.driver.clone());
        }
    }
}

/// Objects of a context, which are dropped unless the device hangs: each call of the driver would
/// block, so they are leaked then.
pub(super) struct UnlessHung<T> {
    value: ManuallyDrop<T>,
    context: Arc<Context>,
}

impl<T> UnlessHung<T> {
    pub(super) fn new(value: T, context: &Arc<Context>) -> UnlessHung<T> {
        UnlessHung { value: ManuallyDrop::new(value), context: context.clone() }
    }
}

impl<T> Deref for UnlessHung<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for UnlessHung<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for UnlessHung<T> {
    fn drop(&mut self) {
        if !self.context.hangs() {
            // SAFETY: the value is dropped here alone, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
