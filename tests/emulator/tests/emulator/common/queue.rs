//! Streams, events and pinned memory for the tests of queued work.

use cudarc::driver::result::{event, stream};
use cudarc::driver::sys::{self, CUevent_flags, CUstream};
use trail_cuda_emulator::{Emulator, Order, Session};

use super::{Gpu, Module, SEMANTICS};

pub(crate) const COUNT: usize = 1000;
pub(crate) const BYTES: usize = COUNT * 4;

/// Lets queued work run when a call waits for it, and not before, even on a slow host.
pub(crate) fn late(session: &Session) {
    let emulator = session.emulator().unwrap();
    emulator.order(Order::Late);
    emulator.background(false);
}

/// Runs `body` in the late order and in the early one, and with some seeds.
pub(crate) fn in_every_order(body: impl Fn(&Gpu, &Module, Emulator)) {
    let session = trail_cuda_emulator::session();
    let emulator = session.emulator().unwrap();
    for round in 0..8u64 {
        emulator.reset();
        emulator.seed(round);
        emulator.order([Order::Late, Order::Early, Order::Seeded][(round as usize).min(2)]);
        let gpu = Gpu::new();
        let module = gpu.load(SEMANTICS).unwrap();
        body(&gpu, &module, emulator);
    }
}

pub(crate) fn add(module: &Module, on: CUstream, at: u64, value: i32) {
    module
        .launch_on(on, "add", 8, 128, 0, vec![at.into(), (COUNT as i32).into(), value.into()])
        .unwrap();
}

pub(crate) fn sum(module: &Module, on: CUstream, to: u64, a: u64, b: u64) {
    module
        .launch_on(on, "sum", 8, 128, 0, vec![to.into(), a.into(), b.into(), (COUNT as i32).into()])
        .unwrap();
}

pub(crate) fn new_stream() -> CUstream {
    stream::create(stream::StreamKind::NonBlocking).unwrap()
}

pub(crate) fn new_event() -> sys::CUevent {
    event::create(CUevent_flags::CU_EVENT_DEFAULT).unwrap()
}

/// Pinned memory of `COUNT` integers.
pub(crate) struct Pinned(pub(crate) *mut i32);

impl Pinned {
    pub(crate) fn new() -> Pinned {
        // SAFETY: freed in drop.
        Pinned(unsafe { cudarc::driver::result::malloc_host(BYTES, 0) }.unwrap().cast())
    }

    pub(crate) fn set(&self, value: i32) {
        // SAFETY: the memory holds `COUNT` integers.
        (0..COUNT).for_each(|i| unsafe { self.0.add(i).write_volatile(value) });
    }

    pub(crate) fn get(&self, i: usize) -> i32 {
        // SAFETY: as above.
        unsafe { self.0.add(i).read_volatile() }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`.
        unsafe { cudarc::driver::result::free_host(self.0.cast()) }.unwrap();
    }
}

pub(crate) fn to_device(on: CUstream, at: u64, from: &Pinned) {
    // SAFETY: both have `BYTES` bytes.
    unsafe { sys::cuMemcpyHtoDAsync_v2(at, from.0.cast(), BYTES, on) }.result().unwrap();
}

pub(crate) fn to_host(on: CUstream, to: &Pinned, at: u64) {
    // SAFETY: both have `BYTES` bytes.
    unsafe { sys::cuMemcpyDtoHAsync_v2(to.0.cast(), at, BYTES, on) }.result().unwrap();
}

pub(crate) fn finish(on: CUstream) {
    // SAFETY: a live stream.
    unsafe { stream::synchronize(on) }.unwrap();
}

pub(crate) fn destroy(streams: &[CUstream]) {
    // SAFETY: created by the test, not used again.
    streams.iter().for_each(|&s| unsafe { stream::destroy(s) }.unwrap());
}
