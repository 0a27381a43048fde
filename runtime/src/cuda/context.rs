//! The driver's context, and errors of `Drop` that are reported by the next call.

use super::error::{CudaError, driver_error};
use cudarc::driver::{CudaContext, DriverError, result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shared owner of the driver's context; every object of the driver holds it, so it goes last.
pub(super) struct Context {
    driver: Arc<CudaContext>,
    /// The first error of a `Drop` that was not reported yet: what follows one is rarely another
    /// cause.
    parked: Mutex<Option<CudaError>>,
    /// True if `parked` has an error: read without the lock on the fast path.
    is_parked: AtomicBool,
}

impl Context {
    pub(super) fn new(driver: Arc<CudaContext>) -> Context {
        Context { driver, parked: Mutex::new(None), is_parked: AtomicBool::new(false) }
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

    /// Gives something back to the driver, from a `Drop`: an error is parked.
    pub(super) fn release(&self, what: &str, release: impl FnOnce() -> Result<(), DriverError>) {
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

    /// Waits until the device has run everything, whatever is parked: for a `Drop` whose memory
    /// must not be freed under a kernel. A device that is lost has stopped, and its error was
    /// reported.
    pub(super) fn wait_regardless(&self) {
        // SAFETY: the context lives as long as `self`.
        let _ = unsafe { result::ctx::set_current(self.driver.cu_ctx()) };
        let _ = result::ctx::synchronize();
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
