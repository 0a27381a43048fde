//! Number of blocks that fit on a multiprocessor, by threads, registers, shared memory and block
//! count. The registers are the interpreter's, or as many as leave room for two blocks: ptxas would
//! use another number, so programs that count on three are found out.

use std::ffi::{c_int, c_uint, c_void};

use super::chip::Chip;
use super::state::{Handle, ready};
use super::{Code, api, error, put};
use crate::ptx::program::Kernel;

/// Shared memory that the system takes of every block.
const RESERVED: u32 = 1024;

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;

/// Registers of a thread.
pub(crate) fn registers(kernel: &Kernel) -> u32 {
    let max = (REGISTERS / (2 * kernel.max_threads.max(1))).min(255) & !7;
    ((kernel.narrow + 2 * kernel.wide) as u32).clamp(16, max.max(16))
}

/// Blocks of one multiprocessor.
pub(crate) fn blocks(chip: &Chip, kernel: &Kernel, threads: u32, shared: u32) -> u32 {
    let by_threads = chip.threads / threads.max(1).next_multiple_of(32);
    let by_shared =
        chip.shared_per_multiprocessor / (kernel.static_shared as u32 + shared + RESERVED);
    let by_registers =
        REGISTERS / (registers(kernel).next_multiple_of(8) * threads.max(1).next_multiple_of(32));
    by_threads.min(by_shared).min(by_registers).min(chip.blocks)
}

fn active(function: Handle, threads: c_int, shared: usize) -> Result<c_int, Code> {
    let state = ready()?;
    let function = state.functions.get(&function).ok_or(error::INVALID_HANDLE)?;
    let threads = u32::try_from(threads).map_err(|_| error::INVALID_VALUE)?;
    Ok(blocks(state.config.chip, &function.kernel, threads, shared as u32) as c_int)
}

fn potential(function: Handle, shared: usize, limit: c_int) -> Result<(c_int, c_int), Code> {
    let state = ready()?;
    let (chip, sms) = (state.config.chip, state.config.sms as c_int);
    let kernel = state.functions.get(&function).ok_or(error::INVALID_HANDLE)?.kernel.clone();
    let max = if limit > 0 {
        limit.min(kernel.max_threads as c_int)
    } else {
        kernel.max_threads as c_int
    };
    let best = (32..=max).step_by(32).max_by_key(|&threads| {
        (blocks(chip, &kernel, threads as u32, shared as u32) as c_int * threads, threads)
    });
    let threads = best.unwrap_or(32);
    Ok((blocks(chip, &kernel, threads as u32, shared as u32) as c_int * sms, threads))
}

api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        count: *mut c_int, function: Handle, threads: c_int, shared: usize) {
        let value = active(function, threads, shared)?;
        // SAFETY: the API's contract.
        unsafe { put(count, value) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        count: *mut c_int, function: Handle, threads: c_int, shared: usize, _flags: c_uint) {
        let value = active(function, threads, shared)?;
        // SAFETY: the API's contract.
        unsafe { put(count, value) }
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int, block: *mut c_int, function: Handle, _of: *const c_void, shared: usize,
        limit: c_int) {
        let (blocks, threads) = potential(function, shared, limit)?;
        // SAFETY: the API's contract.
        unsafe { put(grid, blocks).and(put(block, threads)) }
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: *mut usize, function: Handle, count: c_int, _threads: c_int) {
        let state = ready()?;
        let function = state.functions.get(&function).ok_or(error::INVALID_HANDLE)?;
        let all = state.config.chip.shared_per_multiprocessor;
        let each = all / u32::try_from(count).map_err(|_| error::INVALID_VALUE)?.max(1);
        let left = each.saturating_sub(RESERVED + function.kernel.static_shared as u32).min(
            function.max_dynamic_shared);
        // SAFETY: the API's contract.
        unsafe { put(bytes, left as usize) }
    }
}
