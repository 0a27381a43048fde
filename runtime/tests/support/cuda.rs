//! Shared by the kernel tests: a device, guarded and poisoned buffers, random numbers.

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _, DevicePtrMut as _};
use half::bf16;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use trail_cuda_emulator::harness::Session;
use trail_platform::rng::{signed_unit, splitmix64};
use trail_ptx::{DevicePtr, Target};
use trail_runtime::cuda::Device;

/// Bytes after each output that no kernel may touch.
const GUARD: usize = 256;
/// Bytes of outputs before the kernel; as bf16 and f32 it is not a number, so that what was left
/// out is seen.
const POISON: u8 = 0xff;

/// A device and a stream for one test.
pub struct Bench {
    /// The device.
    pub device: Arc<Device>,
    /// The stream.
    pub stream: Arc<CudaStream>,
    // Dropped last: it fails the test for whatever the emulator found, leaks included.
    session: Session,
}

impl Bench {
    /// A bench on the first device.
    pub fn open() -> Bench {
        Bench::on(trail_cuda_emulator::session())
    }

    fn on(session: Session) -> Bench {
        let device = Arc::new(Device::open(0).expect("a device"));
        let stream = device.context().new_stream().unwrap();
        Bench { device, stream, session }
    }

    /// A bench on a Hopper; `None`, and a word of it, where the GPU is another.
    pub fn hopper() -> Option<Bench> {
        let session = trail_cuda_emulator::session();
        session.emulator().iter().for_each(|emulator| emulator.hopper());
        let bench = Bench::on(session);
        if bench.device.chip().target == Some(Target::Sm90a) {
            return Some(bench);
        }
        eprintln!("skipped: this GPU is no Hopper");
        None
    }

    /// An input, exactly as large as its data.
    pub fn input<T: bytemuck::Pod>(&self, data: &[T]) -> Buffer {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        // A buffer of no elements still needs an address.
        let slice = if bytes.is_empty() { &[0u8][..] } else { bytes };
        Buffer { slice: self.stream.clone_htod(slice).unwrap(), bytes: bytes.len() }
    }

    /// Unwritten memory, for workspaces.
    pub fn raw(&self, bytes: usize) -> Buffer {
        // SAFETY: device memory has no invalid values as bytes; who reads it unwritten is what the
        // tests are about.
        Buffer { slice: unsafe { self.stream.alloc(bytes.max(1)).unwrap() }, bytes }
    }

    /// An output of `bytes`: poisoned, and guarded.
    pub fn output(&self, bytes: usize) -> Output {
        let mut host = vec![POISON; bytes];
        host.extend((0..GUARD).map(guard));
        Output { slice: self.stream.clone_htod(&host).unwrap(), bytes }
    }

    /// An output that begins as `data`, guarded.
    pub fn changed<T: bytemuck::Pod>(&self, data: &[T]) -> Output {
        let mut host = bytemuck::cast_slice::<T, u8>(data).to_vec();
        let bytes = host.len();
        host.extend((0..GUARD).map(guard));
        Output { slice: self.stream.clone_htod(&host).unwrap(), bytes }
    }

    /// The contents of `output`; panics if its guard was touched.
    pub fn read<T: bytemuck::Pod>(&self, output: &Output) -> Vec<T> {
        let host = self.stream.clone_dtoh(&output.slice).unwrap();
        self.stream.synchronize().unwrap();
        let (data, tail) = host.split_at(output.bytes);
        let touched = tail.iter().enumerate().position(|(i, &byte)| byte != guard(i));
        assert_eq!(touched, None, "a byte after the buffer of {} bytes was written", output.bytes);
        data.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// The contents of a workspace.
    pub fn read_raw<T: bytemuck::Pod>(&self, buffer: &Buffer) -> Vec<T> {
        let host = self.stream.clone_dtoh(&buffer.slice).unwrap();
        self.stream.synchronize().unwrap();
        host[..buffer.bytes]
            .chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            note_proofs(&self.device, &self.session);
        }
    }
}

/// Where `TRAIL_PROOFS` names a file: adds what a test has proven, for trail-ptx's `proofs`.
pub fn note_proofs(device: &Device, session: &Session) {
    let Some(ledger) = std::env::var_os("TRAIL_PROOFS") else { return };
    let name = match (session.emulator(), device.chip().target) {
        (Some(_), Some(Target::Sm90a)) => "emulator of Hopper".to_owned(),
        (Some(_), Some(target)) if target.is_blackwell() => {
            format!("emulator of {}", target.name())
        }
        (Some(_), _) => "emulator".to_owned(),
        (None, _) => device.context().name().unwrap(),
    };
    let launched = device.launched().into_iter();
    let lines: String = launched
        .map(|(kernel, code)| format!("{name}\t{}\t{kernel}\n", code.target().name()))
        .collect();
    let mut file = OpenOptions::new().create(true).append(true).open(ledger).unwrap();
    file.write_all(lines.as_bytes()).unwrap();
}

fn guard(i: usize) -> u8 {
    (i as u8).wrapping_mul(37).wrapping_add(11)
}

/// Device memory that a kernel reads, or works in.
pub struct Buffer {
    slice: CudaSlice<u8>,
    bytes: usize,
}

/// Device memory that a kernel writes.
pub struct Output {
    slice: CudaSlice<u8>,
    bytes: usize,
}

/// The device address of a buffer, on the bench's stream.
pub trait Address {
    /// The address.
    fn at<T>(&mut self, bench: &Bench) -> DevicePtr<T>;
}

impl Address for Buffer {
    fn at<T>(&mut self, bench: &Bench) -> DevicePtr<T> {
        DevicePtr::new(self.slice.device_ptr(&bench.stream).0)
    }
}

impl Address for Output {
    fn at<T>(&mut self, bench: &Bench) -> DevicePtr<T> {
        DevicePtr::new(self.slice.device_ptr_mut(&bench.stream).0)
    }
}

/// The seeded random numbers of the tests.
pub struct Rng(pub u64);

/// The name that the CUDA tests still have.
pub use self::Rng as Chance;

impl Rng {
    /// All 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        splitmix64(&mut self.0)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_u64() % end as u64) as usize
    }

    /// In [-1, 1).
    pub fn unit(&mut self) -> f32 {
        signed_unit(self.next_u64())
    }

    /// `count` bf16 in [-scale, scale).
    pub fn bf16s(&mut self, count: usize, scale: f32) -> Vec<bf16> {
        (0..count).map(|_| bf16::from_f32(self.unit() * scale)).collect()
    }

    /// `0..count` in random order.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
