//! The emulator's own functions, for tests: what was found, what to break, when work runs. Their
//! names start with `trail_emu_`; a test that runs on a real driver does not find them.

use std::ffi::c_char;

use super::chip::CHIPS;
use super::config::{Config, Failure, Order, Target};
use super::state::lock;
use super::{Code, run};

/// Forgets findings, planned failures and a broken context's error; settings come from the
/// environment again.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_reset() {
    let mut state = lock();
    state.config = Config::from_environment();
    if state.hung.take().is_some() {
        state.abandon();
    }
    state.random = state.config.seed | 1;
    state.findings.clear();
    state.sticky = None;
    state.executed = 0;
    state.launches = 0;
    state.unfinished = 0;
    state.writes_beside = 0;
}

/// Sets the seed of every choice.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_seed(seed: u64) {
    let mut state = lock();
    state.config.seed = seed;
    // A small seed makes a poor state of the generator.
    state.random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
}

/// When queued work runs: 0 late, 1 early, 2 seeded.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_order(order: u32) {
    lock().config.order = match order {
        0 => Order::Late,
        1 => Order::Early,
        _ => Order::Seeded,
    };
}

/// Sets whether queued work runs after a while although no call waits for it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_background(on: u32) {
    lock().config.background = on != 0;
    run::notice();
}

/// Makes the device the chip of this index in [`CHIPS`].
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_chip(index: u32) -> Code {
    let Some((_, chip)) = CHIPS.get(index as usize) else {
        return super::error::INVALID_VALUE;
    };
    let mut state = lock();
    (state.config.chip, state.config.sms) = (chip, chip.multiprocessors);
    state.config.memory = chip.memory;
    0
}

/// Sets the version of the driver.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_driver(version: u32) {
    lock().config.driver = version as i32;
}

/// Sets the number of multiprocessors.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_multiprocessors(count: u32) {
    lock().config.sms = count.max(1);
}

/// Sets the device's memory in bytes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_memory(bytes: u64) {
    lock().config.memory = bytes;
}

/// Sets the host memory that can be pinned, in bytes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_host_memory(bytes: u64) {
    lock().config.host_memory = bytes;
}

/// Sets the warp instructions after which a launch in which no block ends is given up.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_patience(instructions: u64) {
    lock().config.patience = instructions;
}

/// Makes the `nth` allocation (0), launch (1) or copy (2) from now fail with `code`, or the `nth`
/// kernel (3) or copy (4) that begins never end; 1 is the next.
/// Unknown targets are refused.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_fail(target: u32, nth: u64, code: Code) -> Code {
    let target = match target {
        0 => Target::Allocation,
        1 => Target::Launch,
        2 => Target::Copy,
        3 => Target::Hang,
        4 => Target::HangCopy,
        _ => return super::error::INVALID_VALUE,
    };
    lock().config.failures.push(Failure { target, nth, code });
    0
}

/// Loses the device: every call gives `code` from now on; 0 brings it back.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_lose_device(code: Code) {
    let mut state = lock();
    state.config.lost = (code != 0).then_some(code);
    if code != 0 {
        // A lost device runs nothing more, also not when it is found again.
        state.abandon();
    }
}

/// Ends the context with all that it holds, as the end of a process does.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_forget_context() {
    let mut state = lock();
    state.hung = None;
    state.forget_context();
}

/// Number of findings.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_finding_count() -> u64 {
    lock().findings.len() as u64
}

/// Copies the text of finding `index` into `text` (with a final zero, cut to `room` bytes); gives
/// its length, 0 when there is none.
///
/// # Safety
/// `text` has `room` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn trail_emu_finding(
    index: u64,
    text: *mut c_char,
    room: usize,
) -> usize {
    let Some(message) = lock().findings.get(index as usize).map(ToString::to_string) else {
        return 0;
    };
    let bytes = message.len().min(room.saturating_sub(1));
    if room > 0 && !text.is_null() {
        // SAFETY: the caller's promise: `bytes` + 1 are at most `room`.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), text.cast(), bytes);
            text.add(bytes).write(0);
        }
    }
    message.len()
}

/// Forgets the findings.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_clear_findings() {
    lock().findings.clear();
}

/// Number of allocations that were not freed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_live_allocations() -> u64 {
    lock().memory.leaks().len() as u64
}

/// Operations that are queued and have not run.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_queued() -> u64 {
    lock().queue.ready().len() as u64
}

/// Runs one queued operation; says whether there was one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_step() -> u32 {
    let (_state, ran) = run::one(lock());
    u32::from(ran)
}

/// Thread instructions executed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_executed() -> u64 {
    lock().executed
}

/// Kernels run.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_launches() -> u64 {
    lock().launches
}

/// Writes of streams that were done while a cooperative launch filled the chip.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn trail_emu_writes_beside() -> u64 {
    lock().writes_beside
}
