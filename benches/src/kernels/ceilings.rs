//! Ceilings of the device: reading memory, and multiplying registers.

use std::error::Error;

use trail_runtime::cuda::launch::Launch;
use trail_runtime::cuda::params::CeilingParams;
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::cuda::plan::bench::ceiling;

use super::memory::Memory;
use super::timer::{Timer, Timing};

/// Times a read of `mib` MiB, more than any cache holds; the sums are checked against the words.
pub fn ceiling_read(
    memory: &Memory,
    timer: &Timer,
    mib: usize,
) -> Result<(LaunchPlan, Timing), Box<dyn Error>> {
    let words = mib << 18;
    let mut data = memory.random(words * 2)?;
    let plan = ceiling::read(memory.device.chip(), words / 4);
    let mut sums = memory.zeros(plan.grid[0] as usize * 4)?;
    let timing = timer.time(|_| {
        let params = CeilingParams {
            data: data.at(memory),
            sums: sums.at(memory),
            quads: (words / 4) as i64,
            ..CeilingParams::default()
        };
        // SAFETY: `data` has so many pieces, `sums` a word for each block; both outlive the work.
        unsafe { memory.device.launch(memory.stream, &Launch { plan, params })? };
        Ok(())
    })?;
    let sum = |words: &[u32]| words.iter().fold(0, |sum: u32, &word| sum.wrapping_add(word));
    if sum(&memory.read::<u32>(&sums)?) != sum(&memory.read::<u32>(&data)?) {
        return Err("the read ceiling did not read everything".into());
    }
    Ok((plan, timing))
}

/// Times `rounds` rounds of mma.sync on registers; each sum is checked.
pub fn ceiling_mma(
    memory: &Memory,
    timer: &Timer,
    rounds: usize,
) -> Result<(LaunchPlan, Timing), Box<dyn Error>> {
    let plan = ceiling::mma(memory.device.chip(), rounds);
    let mut sums = memory.zeros((plan.grid[0] * plan.block) as usize * 4)?;
    let timing = timer.time(|_| {
        let sums = sums.at(memory);
        let params = CeilingParams { sums, rounds: rounds as i32, ..CeilingParams::default() };
        // SAFETY: `sums` has a word for each thread, and outlives the work.
        unsafe { memory.device.launch(memory.stream, &Launch { plan, params })? };
        Ok(())
    })?;
    if memory.read::<f32>(&sums)?.iter().any(|&sum| sum != 32.0 * rounds as f32) {
        return Err("the matrix ceiling's sums are wrong".into());
    }
    Ok((plan, timing))
}
