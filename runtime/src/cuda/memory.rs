//! Owned memory: on the device, and pinned memory of the host.
//!
//! Streams and events are the bindings' own, made by [`Device::stream`] and [`Device::event`]. All
//! of it holds the context, and may be dropped on any thread; what the driver says against it then
//! is parked, and reported by the device's next call or by [`Device::parked`]. Dropping does not
//! synchronize: the owner must have waited for all work that uses the buffer.

use super::context::Context;
use super::device::Device;
use super::error::is_out_of_memory;
use super::error::{CudaError, OutOfMemory, driver_error};
use super::plain::{self, Plain};
use super::queue::completion;
use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use trail_ptx::DevicePtr;

/// Default advice of an out-of-memory error of the device; [`CudaError::or_try`] replaces it.
const DEVICE_HELP: &str =
    "free the device of other programs, lower --token-budget or --max-running";
/// And of pinned memory, which the system limits.
const HOST_HELP: &str = "lower --host-kv-gib, or give the process or its container more memory";

/// Device memory. Uninitialised at first.
pub struct DeviceBuffer {
    address: CUdeviceptr,
    bytes: usize,
    what: &'static str,
    context: Arc<Context>,
}

/// Pinned host memory that the device can access. Uninitialised at first.
pub struct PinnedBuffer {
    host: *mut u8,
    address: CUdeviceptr,
    bytes: usize,
    what: &'static str,
    context: Arc<Context>,
}

// SAFETY: the pointer names memory that this alone owns and that stays where it is; the driver
// frees it on any thread. It is read and written through `as_ptr` alone, by unsafe code, which
// answers for races.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above: a shared reference hands out no more than the address.
unsafe impl Sync for PinnedBuffer {}

/// Priority of a stream's kernels, where several wait for a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Before others.
    High,
    /// After others.
    Low,
}

impl Device {
    /// Allocates `bytes` of the device's memory, aligned to 256. `what` is what the message says
    /// when there is too little.
    pub fn alloc(&self, bytes: usize, what: &'static str) -> Result<DeviceBuffer, CudaError> {
        let context = self.shared();
        context.bind()?;
        // SAFETY: the memory is freed once, by `Drop`; its uninitialised contents are never read.
        let address = unsafe { result::malloc_sync(bytes.max(1)) };
        let address = address.map_err(|code| refused(code, bytes, what, true))?;
        Ok(DeviceBuffer { address, bytes, what, context: context.clone() })
    }

    /// As [`Device::alloc`], with zeros, written when it returns.
    pub fn alloc_zeros(&self, bytes: usize, what: &'static str) -> Result<DeviceBuffer, CudaError> {
        let buffer = self.alloc(bytes, what)?;
        // SAFETY: a fill of the whole of a new buffer, by the default stream.
        let filled =
            unsafe { result::memset_d8_async(buffer.address, 0, buffer.bytes, ptr::null_mut()) };
        // The streams of this project do not wait for the default one, and a call that waits has
        // no time limit.
        filled.map_err(driver_error(what))?;
        self.wait_for_default_stream(what)?;
        Ok(buffer)
    }

    /// `values` in new memory of the device, there when it returns.
    pub fn upload<T: Copy>(
        &self,
        values: &[T],
        what: &'static str,
    ) -> Result<DeviceBuffer, CudaError> {
        let buffer = self.alloc(size_of_val(values), what)?;
        // SAFETY: the buffer is as large as the slice. The copy of pageable memory has read it when
        // it returns; the wait below sees it arrive.
        let copied = unsafe { result::memcpy_htod_async(buffer.address, values, ptr::null_mut()) };
        copied.map_err(driver_error(what))?;
        self.wait_for_default_stream(what)?;
        Ok(buffer)
    }

    /// Allocates `bytes` of pinned memory of the host, mapped for every context.
    pub fn alloc_pinned(
        &self,
        bytes: usize,
        what: &'static str,
    ) -> Result<PinnedBuffer, CudaError> {
        let context = self.shared();
        context.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the memory is freed once, by `Drop`; every value of its bytes is valid.
        let host = unsafe { result::malloc_host(bytes.max(1), flags) };
        let host = host.map_err(|code| refused(code, bytes, what, false))?;
        let mut buffer =
            PinnedBuffer { host: host.cast(), address: 0, bytes, what, context: context.clone() };
        // SAFETY: asks for the device's address of memory allocated above as mapped.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut buffer.address, host, 0) };
        code.result().map_err(driver_error(what))?;
        Ok(buffer)
    }

    /// As [`Device::alloc_pinned`], with zeros.
    pub fn alloc_pinned_zeros(
        &self,
        bytes: usize,
        what: &'static str,
    ) -> Result<PinnedBuffer, CudaError> {
        let mut buffer = self.alloc_pinned(bytes, what)?;
        buffer.bytes_mut().fill(0);
        Ok(buffer)
    }

    /// A stream that does not synchronize with the default stream.
    pub fn stream(&self, priority: Priority) -> Result<Arc<CudaStream>, CudaError> {
        self.shared().bind()?;
        let create = || {
            let (least, greatest) = result::stream::get_priority_range()?;
            self.context().new_stream_with_priority(match priority {
                Priority::High => greatest,
                Priority::Low => least,
            })
        };
        create().map_err(driver_error("making a stream"))
    }

    /// An event without timing.
    pub fn event(&self) -> Result<CudaEvent, CudaError> {
        self.shared().bind()?;
        self.context().new_event(None).map_err(driver_error("making an event"))
    }

    /// Free bytes of the device's memory.
    pub fn free_bytes(&self) -> Result<usize, CudaError> {
        self.shared().bind()?;
        let (free, _) = result::mem_get_info().map_err(driver_error("asking for free memory"))?;
        Ok(free)
    }

    /// Waits for fills and copies that name no stream.
    fn wait_for_default_stream(&self, what: &str) -> Result<(), CudaError> {
        // SAFETY: the default stream of the current context always is.
        self.shared().wait(what, || completion(unsafe { sys::cuStreamQuery(ptr::null_mut()) }))
    }

    /// Waits for all work of all streams, however long it takes.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.shared().bind()?;
        result::ctx::synchronize().map_err(driver_error("waiting for the device"))
    }

    /// The first error of a `Drop` that was not reported yet.
    pub fn parked(&self) -> Option<CudaError> {
        self.shared().take_parked()
    }
}

impl DeviceBuffer {
    /// Address of the first element, of whichever type its user takes the bytes for.
    pub fn device_ptr<T>(&self) -> DevicePtr<T> {
        DevicePtr::new(self.address)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl PinnedBuffer {
    /// The address by which the device knows it; see [`DeviceBuffer::device_ptr`].
    pub fn device_ptr<T>(&self) -> DevicePtr<T> {
        DevicePtr::new(self.address)
    }

    /// The address by which the host knows it, aligned to a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.host
    }

    /// Host address of the first byte of `range`.
    ///
    /// # Panics
    /// If the range does not lie within the buffer.
    pub(super) fn byte_at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {}", self.bytes);
        // SAFETY: within the allocation, as asserted.
        unsafe { self.host.add(range.start) }
    }

    /// All bytes. The caller changes only bytes that no work in flight on the device reads.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is this buffer's alone; each of its values is valid. Buffers that the
        // device writes are read by `load` and `read`, never by a slice that lives meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.host, self.bytes) }
    }

    /// Writes `values` from byte `offset` on; see [`PinnedBuffer::bytes_mut`].
    #[inline]
    pub fn write<T: Plain>(&mut self, offset: usize, values: &[T]) {
        let bytes = plain::bytes_of(values);
        self.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The word at byte `offset`, a multiple of 4, which the device may write at any time. What the
    /// device stored before the word, with a fence between, is seen by reads after this.
    pub fn load(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4), "a word at byte {offset}");
        let at = self.byte_at(&(offset..offset + 4)).cast();
        // SAFETY: the word lies within the allocation (`byte_at` checks it), is aligned (asserted;
        // the allocation begins on a page), and is written whole.
        unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire)
    }

    /// The device's address of the word at byte `offset`, a multiple of 4.
    pub(super) fn word_at(&self, offset: usize) -> DevicePtr<u32> {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes, "a word at byte {offset}");
        self.device_ptr().add(offset / 4)
    }

    /// The value at byte `offset`, which the device has written and does not write now.
    pub fn read<T: Plain>(&self, offset: usize) -> T {
        let at = self.byte_at(&(offset..offset + size_of::<T>())).cast::<T>();
        // SAFETY: within the allocation (`byte_at` checks it), and any bytes are a valid `Plain`.
        unsafe { at.read_unaligned() }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `Device::alloc`, and freed here alone.
        self.context.release(self.what, || unsafe { result::free_sync(self.address) });
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let host = self.host.cast::<c_void>();
        // SAFETY: allocated by `Device::alloc_pinned`, and freed here alone.
        self.context.release(self.what, || unsafe { result::free_host(host) });
    }
}

/// The error of a failed allocation; asks for the free memory, in the current context.
fn refused(code: DriverError, needed: usize, what: &'static str, on_device: bool) -> CudaError {
    if !is_out_of_memory(&code) {
        return driver_error(format!("allocating {needed} bytes for {what}"))(code);
    }
    let free = on_device.then(|| result::mem_get_info().map_or(0, |(free, _)| free));
    let help = if on_device { DEVICE_HELP } else { HOST_HELP };
    CudaError::OutOfMemory(OutOfMemory { what, needed, free, help })
}
