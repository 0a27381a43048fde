//! Device memory: allocations in an address space of their own, and what is known about every byte.

mod allocation;
mod owners;
mod shadow;
mod table;
mod tensor_map;
mod writers;
mod zeroed_words;

pub(crate) use allocation::{Allocation, Kind, State};
pub(crate) use owners::{Owners, Race};
pub(crate) use shadow::Written;
pub(crate) use table::{Memory, Table};
pub(crate) use tensor_map::{Swizzle, TensorMap, WORDS};
pub(crate) use writers::Writers;
pub(crate) use zeroed_words::ZeroedWords;

/// Generic addresses of a block's shared memory start here.
pub(crate) const SHARED_WINDOW: u64 = 0x1000_0000_0000;
/// Generic addresses of a thread's local memory start here.
pub(crate) const LOCAL_WINDOW: u64 = 0x1100_0000_0000;
/// Generic addresses of a kernel's parameters start here.
pub(crate) const PARAM_WINDOW: u64 = 0x1200_0000_0000;
/// Bytes of each window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;
/// Device allocations start here: a host never has memory at such an address, so the host crashes
/// when it follows one.
pub(crate) const DEVICE_BASE: u64 = 0x2000_0000_0000;
/// Value of unwritten bytes as the host reads them.
pub(crate) const POISON: u8 = 0xCB;
