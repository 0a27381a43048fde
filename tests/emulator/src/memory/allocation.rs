//! One allocation: its bytes on the host, its addresses on the device, its state.

use std::alloc::Layout;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use super::{Owners, POISON, Writers, Written};

/// Where an allocation came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc` and its like.
    Device,
    /// `cuMemHostAlloc`: the device address is the host address.
    Host,
    /// `cuMemHostRegister`: somebody else's memory.
    Registered,
    /// A module's variable.
    Module,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Device => "allocation",
            Kind::Host => "pinned host memory",
            Kind::Registered => "registered host memory",
            Kind::Module => "module variable",
        })
    }
}

/// May it be used?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// `cuMemAllocAsync` gave the address, its stream is not there yet.
    Pending,
    Live,
    Freed,
}

/// A range of device addresses. It stays in the table after it is freed, so that a later use can be
/// named.
pub(crate) struct Allocation {
    pub(crate) number: u64,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) written: Written,
    pub(crate) owners: Owners,
    pub(crate) writers: Writers,
    host: AtomicPtr<u8>,
    /// Bytes of the host block before `host`.
    padding: usize,
    state: AtomicU8,
}

/// As a real driver's.
const ALIGN: usize = 256;

/// The host block for `bytes` bytes: room to align them. With the alignment in the layout, the
/// allocator would write every zero, where pages that nothing touches cost nothing.
fn block(bytes: u64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(bytes).ok()?.checked_add(ALIGN)?, 1).ok()
}

impl Allocation {
    /// Fresh memory at device address `base`, or, for `None`, at its host address; zero bytes
    /// underneath, all unwritten. `None` when the host has no memory.
    pub(crate) fn new(
        number: u64,
        base: Option<u64>,
        bytes: u64,
        kind: Kind,
        state: State,
    ) -> Option<Allocation> {
        // SAFETY: the layout has a size of at least `ALIGN`.
        let start = unsafe { std::alloc::alloc_zeroed(block(bytes)?) };
        if start.is_null() {
            return None;
        }
        let written = if kind == Kind::Host { Written::all() } else { Written::none(bytes) };
        let padding = start.align_offset(ALIGN);
        let host = start.wrapping_add(padding);
        Some(Allocation {
            number,
            base: base.unwrap_or(host as u64),
            bytes,
            kind,
            name: String::new(),
            written,
            owners: Owners::new(bytes),
            writers: Writers::new(bytes),
            host: AtomicPtr::new(host),
            padding,
            state: AtomicU8::new(state as u8),
        })
    }

    /// Memory of the caller's, under its own address.
    pub(crate) fn registered(number: u64, host: *mut u8, bytes: u64) -> Allocation {
        Allocation {
            number,
            base: host as u64,
            bytes,
            kind: Kind::Registered,
            name: String::new(),
            written: Written::all(),
            owners: Owners::new(bytes),
            writers: Writers::new(bytes),
            host: AtomicPtr::new(host),
            padding: 0,
            state: AtomicU8::new(State::Live as u8),
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Pending,
            1 => State::Live,
            _ => State::Freed,
        }
    }

    pub(crate) fn make_live(&self) {
        self.state.store(State::Live as u8, Ordering::Relaxed);
    }

    /// Ends its life and gives its bytes back. Must not be called while a kernel runs.
    pub(crate) fn free(&self) {
        self.state.store(State::Freed as u8, Ordering::Relaxed);
        self.release();
    }

    fn release(&self) {
        let host = self.host.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if host.is_null() || self.kind == Kind::Registered {
            return;
        }
        if let Some(layout) = block(self.bytes) {
            // SAFETY: `new` allocated it with this layout, `padding` before `host`; the swap above
            // makes sure that it is freed once.
            unsafe { std::alloc::dealloc(host.wrapping_sub(self.padding), layout) };
        }
    }

    /// Host address of a device address inside.
    #[inline]
    pub(crate) fn host(&self, address: u64) -> *mut u8 {
        self.host.load(Ordering::Relaxed).wrapping_add((address - self.base) as usize)
    }

    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }

    /// Bytes as a copy to the host sees them: poison where nothing was written.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) {
        // SAFETY: callers pass ranges inside a live allocation (`Memory::check`), which `host`
        // covers; the executor's lock keeps kernels away.
        unsafe { std::ptr::copy_nonoverlapping(self.host(address), into.as_mut_ptr(), into.len()) };
        let offset = address - self.base;
        if !self.written.is(offset, into.len() as u64) {
            for (at, byte) in into.iter_mut().enumerate() {
                if !self.written.is(offset + at as u64, 1) {
                    *byte = POISON;
                }
            }
        }
    }

    /// Stores bytes and marks them written.
    pub(crate) fn write(&self, address: u64, from: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.host(address), from.len()) };
        self.written.set(address - self.base, from.len() as u64);
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.release();
    }
}

impl std::fmt::Display for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state() {
            State::Freed => ", freed",
            State::Pending => ", not yet allocated on its stream",
            State::Live => "",
        };
        write!(f, "{} {}", self.kind, self.number)?;
        if !self.name.is_empty() {
            write!(f, " `{}`", self.name)?;
        }
        write!(f, " ({:#x}, {} bytes{state})", self.base, self.bytes)
    }
}
