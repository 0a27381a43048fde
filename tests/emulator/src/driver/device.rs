//! One device, with the attributes of its [`Chip`].

use std::ffi::{c_char, c_int};

use super::chip::Chip;
use super::state::lock;
use super::{api, error, put};

/// Shared memory of a block without asking for more.
pub(crate) const SHARED_DEFAULT: u32 = 48 << 10;

/// `CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH`.
const COOPERATIVE: u32 = 95;

fn attribute(which: u32, chip: &Chip, sms: u32) -> i32 {
    match which {
        // Threads of a block; block and grid dimensions.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => SHARED_DEFAULT as i32,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        // Registers of a block and of a multiprocessor.
        12 | 82 => 65536,
        13 => 1_410_000,
        14 => 512,
        16 => sms as i32,
        // Overlap, mapped host memory, concurrent kernels, unified addresses.
        15 | 19 | 31 | 41 => 1,
        33 => 1,
        36 => 1_593_000,
        37 => 5120,
        38 => chip.l2_bytes,
        39 => chip.threads as i32,
        40 => 3,
        75 => chip.capability.0,
        76 => chip.capability.1,
        // Stream priorities, L1 caches.
        78..=80 => 1,
        81 => chip.shared_per_multiprocessor as i32,
        // Host pointers of registered memory, stream memory operations, host registration.
        91 | 92 | 93 | 94 | 99 | 122 | 123 => 1,
        97 => chip.shared_per_block as i32,
        106 => chip.blocks as i32,
        111 => 1024,
        // Memory pools, for cuMemAllocAsync.
        115 => 1,
        _ => 0,
    }
}

api! {
    fn cuInit(_flags: u32) {
        let mut state = lock();
        state.config.lost.map_or(Ok(()), Err)?;
        state.initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        let driver = lock().config.driver;
        // SAFETY: the API's contract.
        unsafe { put(version, driver) }
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        initialised()?;
        // SAFETY: the API's contract.
        unsafe { put(count, 1) }
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        initialised()?;
        if ordinal != 0 {
            return Err(error::INVALID_DEVICE);
        }
        // SAFETY: the API's contract.
        unsafe { put(device, 0) }
    }

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) {
        exists(device)?;
        let room = usize::try_from(length).map_err(|_| error::INVALID_VALUE)?;
        if name.is_null() || room == 0 {
            return Err(error::INVALID_VALUE);
        }
        let chip = lock().config.chip.name;
        let bytes = chip.len().min(room - 1);
        // SAFETY: the caller has `room` bytes; at most `room - 1` and the end are written.
        unsafe {
            std::ptr::copy_nonoverlapping(chip.as_ptr(), name.cast(), bytes);
            name.add(bytes).write(0);
        }
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        exists(device)?;
        // SAFETY: the API's contract.
        unsafe { put(uuid, *b"trail-emulator-0") }
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        exists(device)?;
        // SAFETY: the API's contract.
        unsafe { put(uuid, *b"trail-emulator-0") }
    }

    fn cuDeviceGetPCIBusId(name: *mut c_char, length: c_int, device: c_int) {
        exists(device)?;
        let id = b"0000:01:00.0\0";
        if name.is_null() || (length as usize) < id.len() {
            return Err(error::INVALID_VALUE);
        }
        // SAFETY: the caller has `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(id.as_ptr(), name.cast(), id.len()) };
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        exists(device)?;
        let total = lock().config.memory as usize;
        // SAFETY: the API's contract.
        unsafe { put(bytes, total) }
    }

    fn cuDeviceGetAttribute(value: *mut c_int, which: u32, device: c_int) {
        exists(device)?;
        let state = lock();
        let found = match which {
            COOPERATIVE => i32::from(state.config.cooperative),
            _ => attribute(which, state.config.chip, state.config.sms),
        };
        // SAFETY: the API's contract.
        unsafe { put(value, found) }
    }

    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: c_int) {
        exists(device)?;
        let capability = lock().config.chip.capability;
        // SAFETY: the API's contract.
        unsafe { put(major, capability.0).and(put(minor, capability.1)) }
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        exists(device).and(exists(peer))?;
        // SAFETY: the API's contract.
        unsafe { put(can, 0) }
    }

    fn cuGetErrorName(code: u32, text: *mut *const c_char) {
        let name = error::name(code);
        // SAFETY: the API's contract.
        unsafe { put(text, name)? };
        if name.is_null() { Err(error::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuGetErrorString(code: u32, text: *mut *const c_char) {
        let name = error::name(code);
        // SAFETY: the API's contract.
        unsafe { put(text, name)? };
        if name.is_null() { Err(error::INVALID_VALUE) } else { Ok(()) }
    }
}

fn initialised() -> super::Answer {
    let state = lock();
    state.config.lost.map_or(Ok(()), Err)?;
    if state.initialised { Ok(()) } else { Err(error::NOT_INITIALIZED) }
}

pub(super) fn exists(device: c_int) -> super::Answer {
    initialised()?;
    if device == 0 { Ok(()) } else { Err(error::INVALID_DEVICE) }
}
