//! A stream of a device, with one promise for all launches and copies that are put on it.

use super::device::Device;
use super::error::CudaError;
use super::launch::Launch;
use super::memory::PinnedBuffer;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaEvent, CudaStream, DriverError};
use std::ops::Range;
use std::sync::Arc;
use trail_ptx::{DevicePtr, Parameters};

/// Flags of a stream's memory write: the default, with a fence of the system before it.
const FENCED: u32 = 0;

/// Launches kernels and copies memory in the order of one stream. The safety obligation of all
/// launches and asynchronous copies is taken over once, where the queue is made ([`Queue::new`]),
/// so that the code which lists a step's launches is safe code.
pub struct Queue {
    device: Arc<Device>,
    stream: Arc<CudaStream>,
}

impl Queue {
    /// A queue on `stream` of `device`.
    ///
    /// # Safety
    /// Every device address in a launch or a copy that is put on this queue must be valid for what
    /// the kernel's header (or the copy) says it reads and writes, from the call until the stream
    /// has run it, and no other work may access the same memory in conflict meanwhile. The same
    /// holds for the pinned memory of copies.
    pub unsafe fn new(device: Arc<Device>, stream: Arc<CudaStream>) -> Queue {
        Queue { device, stream }
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The stream, for events.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Launches a kernel. Returns before it has run.
    pub fn launch<P: Parameters>(&self, launch: &Launch<P>) -> Result<(), CudaError> {
        // SAFETY: the maker of the queue answers for all launches on it (`Queue::new`).
        unsafe { self.device.launch(&self.stream, launch) }
    }

    /// Starts a copy of `range`'s bytes of `to` from device memory.
    pub fn copy_to_host<T>(
        &self,
        to: &PinnedBuffer,
        range: Range<usize>,
        from: DevicePtr<T>,
    ) -> Result<(), DriverError> {
        let (at, bytes, stream) = (to.byte_at(&range), range.len(), self.stream.cu_stream());
        // SAFETY: the range lies within the pinned memory (`byte_at` checks it); the maker of the
        // queue answers for the lifetime of both sides (`Queue::new`).
        unsafe { sys::cuMemcpyDtoHAsync_v2(at.cast(), from.address(), bytes, stream) }.result()
    }

    /// Writes `value` to the word at byte `offset` of `to`, behind a fence: a host that sees it, or
    /// anything that the queue writes later, sees every copy that the queue made before. It needs
    /// no room on a multiprocessor.
    pub fn write_word(
        &self,
        to: &PinnedBuffer,
        offset: usize,
        value: u32,
    ) -> Result<(), DriverError> {
        let at = to.word_at(offset);
        let stream = self.stream.cu_stream();
        // SAFETY: the word lies within the pinned memory (`word_at` checks it), which lives as long
        // as the queue's work (`Queue::new`).
        unsafe { sys::cuStreamWriteValue32_v2(stream, at.address(), value, FENCED) }.result()
    }

    /// Starts a copy of `range`'s bytes of `from` to device memory.
    pub fn copy_to_device<T>(
        &self,
        to: DevicePtr<T>,
        from: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<(), DriverError> {
        let (at, bytes, stream) = (from.byte_at(&range), range.len(), self.stream.cu_stream());
        // SAFETY: as in `copy_to_host`.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to.address(), at.cast(), bytes, stream) }.result()
    }

    /// Waits until everything on the queue has run, within the device's timeout; `what` says in an
    /// error what was waited for.
    pub fn synchronize(&self, what: &'static str) -> Result<(), CudaError> {
        self.device.shared().bind()?;
        self.device.shared().wait(what, || self.is_idle())
    }

    /// The same for a `Drop`, whatever error is still to be reported.
    pub(super) fn drain(&self) {
        self.device.shared().drain(|| self.is_idle());
    }

    /// Returns whether everything on the queue has run.
    pub fn is_idle(&self) -> Result<bool, DriverError> {
        // SAFETY: the stream is alive as long as `self`.
        completion(unsafe { sys::cuStreamQuery(self.stream.cu_stream()) })
    }
}

/// Returns whether everything before `event` has run. cudarc has the same from 0.19.10 on;
/// programs bound to 0.19.8 link this crate, too.
pub fn has_run(event: &CudaEvent) -> Result<bool, DriverError> {
    // SAFETY: the event is alive as long as the reference.
    completion(unsafe { sys::cuEventQuery(event.cu_event()) })
}

pub(super) fn completion(code: CUresult) -> Result<bool, DriverError> {
    match code.result() {
        Ok(()) => Ok(true),
        Err(code) if code.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(code) => Err(code),
    }
}
