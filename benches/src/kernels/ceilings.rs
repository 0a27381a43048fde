//! Ceilings of the device: reading memory, and multiplying registers.

use std::error::Error;

use trail_runtime::cuda::launch::Launch;
use trail_runtime::cuda::params::CeilingParams;
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::cuda::plan::bench::ceiling;

use super::memory::{Buffer, Memory};
use super::timer::{Timer, Timing};

/// A read of random data by all multiprocessors.
struct Read<'a> {
    memory: &'a Memory<'a>,
    plan: LaunchPlan,
    words: usize,
    data: Buffer,
    sums: Buffer,
}

impl<'a> Read<'a> {
    fn new(memory: &'a Memory<'a>, mib: usize) -> Result<Read<'a>, Box<dyn Error>> {
        let words = mib << 18;
        let plan = ceiling::read(memory.device.chip(), words / 4);
        let data = memory.random(words * 2)?;
        Ok(Read { memory, plan, words, data, sums: memory.zeros(plan.grid[0] as usize * 4)? })
    }

    fn launch(&mut self) -> Result<(), Box<dyn Error>> {
        let params = CeilingParams {
            data: self.data.at(self.memory),
            sums: self.sums.at(self.memory),
            quads: (self.words / 4) as i64,
            ..CeilingParams::default()
        };
        let launch = Launch { plan: self.plan, params };
        // SAFETY: `data` has so many pieces, `sums` a word for each block; both outlive the work.
        unsafe { self.memory.device.launch(self.memory.stream, &launch)? };
        Ok(())
    }

    /// Fails unless the sums are those of the words.
    fn verify(&self) -> Result<(), Box<dyn Error>> {
        let sum = |words: &[u32]| words.iter().fold(0, |sum: u32, &word| sum.wrapping_add(word));
        let read = sum(&self.memory.read::<u32>(&self.sums)?);
        match read == sum(&self.memory.read::<u32>(&self.data)?) {
            true => Ok(()),
            false => Err("the read ceiling did not read everything".into()),
        }
    }
}

/// Times a read of `mib` MiB, more than any cache holds; the sums are checked against the words.
pub fn ceiling_read(
    memory: &Memory,
    timer: &Timer,
    mib: usize,
) -> Result<(LaunchPlan, Timing), Box<dyn Error>> {
    let mut read = Read::new(memory, mib)?;
    let timing = timer.time(|_| read.launch())?;
    read.verify()?;
    Ok((read.plan, timing))
}

/// Reads a MiB once, without a graph: the smallest work whose result shows that a device works.
pub fn canary(memory: &Memory) -> Result<(), Box<dyn Error>> {
    let mut read = Read::new(memory, 1)?;
    read.launch()?;
    read.verify()
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
