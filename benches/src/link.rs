//! Rate of the link between host and device: the reference of `bench load` and `bench swap`.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result};
use trail_runtime::cuda::swap::seconds;
use trail_runtime::cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer, Priority};

/// Large copies between pinned memory and the device.
pub struct Link {
    device: Arc<Device>,
    stream: Arc<CudaStream>,
    pinned: PinnedBuffer,
    memory: DeviceBuffer,
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From host to device.
    In,
    /// From device to host.
    Out,
}

impl Link {
    /// Buffers for copies of `bytes` bytes.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Link, Box<dyn Error>> {
        let pinned = device.alloc_pinned(bytes, "the link's measurement")?;
        // SAFETY: the buffer has `bytes` bytes, and nothing else refers to it yet.
        unsafe { pinned.as_ptr().write_bytes(1, bytes) };
        let memory = device.alloc_zeros(bytes, "the link's measurement")?;
        Ok(Link { device: device.clone(), stream: device.stream(Priority::Low)?, pinned, memory })
    }

    /// Measures one copy, GB/s.
    pub fn gb_per_s(&mut self, direction: Direction) -> Result<f64, Box<dyn Error>> {
        let Link { device, stream, pinned, memory } = self;
        let bytes = pinned.bytes();
        // SAFETY: `new` wrote all of it; the copies into it end before `seconds` returns.
        let host = unsafe { std::slice::from_raw_parts_mut(pinned.as_ptr(), bytes) };
        let elapsed = seconds(device, stream, || {
            // SAFETY: both sides have the bytes and stay until the copy has ended.
            let copied = unsafe {
                match direction {
                    Direction::In => result::memcpy_htod_async(
                        memory.device_ptr::<u8>().address(),
                        host,
                        stream.cu_stream(),
                    ),
                    Direction::Out => result::memcpy_dtoh_async(
                        host,
                        memory.device_ptr::<u8>().address(),
                        stream.cu_stream(),
                    ),
                }
            };
            let operation = "copying to measure the link".to_owned();
            copied.map_err(|code| CudaError::Driver { operation, code })
        })?;
        Ok(bytes as f64 / elapsed / 1e9)
    }
}
