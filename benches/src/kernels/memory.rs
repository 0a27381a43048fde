//! Device memory for the benchmarks: random values, in several copies if one would stay in L2.

use std::error::Error;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut as _};
use half::bf16;
use trail_platform::Rng;
use trail_ptx::DevicePtr;
use trail_runtime::cuda::Device;

/// Number of random values; longer buffers repeat them.
const DRAWN: usize = 1 << 20;
/// Most copies of one operand. An operand so small that this many stay in L2 is not bound by
/// reading.
const MAX_COPIES: usize = 64;

/// Allocator of one device.
pub struct Memory<'a> {
    /// The device.
    pub device: &'a Device,
    /// The stream of all work.
    pub stream: &'a Arc<CudaStream>,
    /// Random bf16 in ±1/16.
    drawn: Vec<bf16>,
}

/// A buffer, freed in stream order.
pub struct Buffer(CudaSlice<u8>);

impl<'a> Memory<'a> {
    /// An allocator on `device` and `stream`.
    pub fn new(device: &'a Device, stream: &'a Arc<CudaStream>) -> Memory<'a> {
        let mut draw = Rng::new(1);
        let drawn = (0..DRAWN).map(|_| bf16::from_f32(draw.signed() / 16.0)).collect();
        Memory { device, stream, drawn }
    }

    /// A buffer of `bytes` zeroed bytes.
    pub fn zeros(&self, bytes: usize) -> Result<Buffer, Box<dyn Error>> {
        Ok(Buffer(self.stream.alloc_zeros(bytes.max(16))?))
    }

    /// A buffer with `values`.
    pub fn of<T: Pod>(&self, values: &[T]) -> Result<Buffer, Box<dyn Error>> {
        Ok(Buffer(self.stream.clone_htod(bytemuck::cast_slice::<T, u8>(values))?))
    }

    /// A buffer of `count` random bf16.
    pub fn random(&self, count: usize) -> Result<Buffer, Box<dyn Error>> {
        let Buffer(mut slice) = self.zeros(count * 2)?;
        let drawn: &[u8] = bytemuck::cast_slice(&self.drawn);
        for first in (0..count * 2).step_by(drawn.len()) {
            let len = drawn.len().min(count * 2 - first);
            self.stream.memcpy_htod(&drawn[..len], &mut slice.slice_mut(first..first + len))?;
        }
        Ok(Buffer(slice))
    }

    /// Copies of a random operand of `count` bf16, together several times as large as L2.
    pub fn rotated(&self, count: usize) -> Result<Vec<Buffer>, Box<dyn Error>> {
        (0..self.copies(count * 2)).map(|_| self.random(count)).collect()
    }

    /// Number of operands of `bytes` bytes that are together several times as large as L2.
    pub fn copies(&self, bytes: usize) -> usize {
        let enough = 4 * self.device.chip().l2_bytes as usize;
        enough.div_ceil(bytes).clamp(1, MAX_COPIES)
    }

    /// Sets `buffer` to zeros.
    pub fn clear(&self, buffer: &mut Buffer) -> Result<(), Box<dyn Error>> {
        Ok(self.stream.memset_zeros(&mut buffer.0)?)
    }

    /// Returns the values in `buffer`.
    pub fn read<T: Pod>(&self, buffer: &Buffer) -> Result<Vec<T>, Box<dyn Error>> {
        let bytes = self.stream.clone_dtoh(&buffer.0)?;
        self.stream.synchronize()?;
        Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }

    /// The bf16 values in `buffer`, each widened to the bits of an f32.
    pub fn read_bf16(&self, buffer: &Buffer) -> Result<Vec<u32>, Box<dyn Error>> {
        let pairs = self.read::<u32>(buffer)?;
        Ok(pairs.iter().flat_map(|&pair| [pair << 16, pair & 0xffff_0000]).collect())
    }
}

/// Buffers that live as long as the parameters with their addresses.
#[derive(Default)]
pub struct Kept(Vec<Buffer>);

impl Kept {
    /// Keeps `buffer`; returns its device address.
    pub fn keep<T>(&mut self, memory: &Memory, mut buffer: Buffer) -> DevicePtr<T> {
        let address = buffer.at(memory);
        self.0.push(buffer);
        address
    }
}

impl Buffer {
    /// The device address.
    pub fn at<T>(&mut self, memory: &Memory) -> DevicePtr<T> {
        DevicePtr::new(self.0.device_ptr_mut(memory.stream).0)
    }
}
