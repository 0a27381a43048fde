//! The small kernels around a step: embedding, the tap's mean, the probe.

use std::error::Error;

use cudarc::driver::sys::CUdeviceptr;
use trail_platform::Rng;
use trail_runtime::cuda::launch::{self, EmbedBuffers, ProbeBuffers, TapSegment};
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::cuda::plan::step;
use trail_runtime::model::ModelConfig;

use super::cases::{Case, Limits, Prepared};
use super::memory::{Buffer, Memory};

/// Rows of the step.
const ROWS: usize = 512;
/// Numbers of prompts whose rows the tap averages.
const TAP_RUNS: [usize; 2] = [1, 8];
/// Hidden units of the probe.
const PROBE_UNITS: usize = 512;
/// Output bins of the probe.
const PROBE_BINS: usize = 10;

/// A small op.
enum Op {
    Embed { vocab: usize },
    TapMean { runs: usize },
    Probe,
}

/// An op, its rows (or rows of one run) and their width.
struct Small {
    op: Op,
    rows: usize,
    width: usize,
}

/// All small ops, with at most `most.rows` rows.
pub fn small(config: &ModelConfig, max: Limits) -> Vec<Box<dyn Case>> {
    let width = config.hidden_size;
    let rows = ROWS.min(max.rows);
    let mut ops = vec![(Op::Embed { vocab: config.vocab_size }, rows)];
    ops.extend(TAP_RUNS.map(|runs| (Op::TapMean { runs }, rows)));
    ops.push((Op::Probe, rows));
    let case = |(op, rows)| Box::new(Small { op, rows, width }) as Box<dyn Case>;
    ops.into_iter().map(case).collect()
}

impl Case for Small {
    fn op(&self) -> &'static str {
        match self.op {
            Op::Embed { .. } => "embed",
            Op::TapMean { .. } => "tap_mean",
            Op::Probe => "probe",
        }
    }

    fn launches(&self) -> Vec<LaunchPlan> {
        let Small { rows, width, .. } = *self;
        match self.op {
            Op::Embed { .. } => vec![step::embed(rows, width)],
            Op::TapMean { runs } => vec![step::tap_mean(runs, runs * rows, width)],
            Op::Probe => step::probe(rows, width, PROBE_UNITS, PROBE_BINS).to_vec(),
        }
    }

    fn rows(&self) -> usize {
        match self.op {
            Op::TapMean { runs } => runs * self.rows,
            _ => self.rows,
        }
    }

    fn prepare(&self, memory: &Memory) -> Result<Box<dyn Prepared + '_>, Box<dyn Error>> {
        let (buffers, result) = match self.op {
            Op::Embed { vocab } => (self.embed(memory, vocab)?, 5),
            Op::TapMean { runs } => (self.tap_mean(memory, runs)?, 2),
            Op::Probe => (self.probe(memory)?, 6),
        };
        Ok(Box::new(Buffers { case: self, buffers, result }))
    }
}

/// Buffers of an op in the order of the launch's parameters; several copies of operands that would
/// stay in L2.
type Operands = Result<Vec<Vec<Buffer>>, Box<dyn Error>>;

impl Small {
    fn embed(&self, memory: &Memory, vocab: usize) -> Operands {
        let Small { rows, width, .. } = *self;
        let mut draw = Rng::new(1);
        let mut tokens = || (0..rows).map(|_| draw.below(vocab as u64) as i32).collect::<Vec<_>>();
        let copies = memory.copies(rows * width * 2);
        Ok(vec![
            vec![memory.random(vocab * width)?],
            (0..copies).map(|_| memory.of(&tokens())).collect::<Result<_, _>>()?,
            vec![memory.of(&vec![0_i32; rows])?],
            vec![memory.random(width)?],
            vec![memory.zeros(rows * width * 4)?],
            vec![memory.zeros(rows * width * 2)?],
            vec![memory.zeros(rows * step::parts(width) * 4)?],
        ])
    }

    fn tap_mean(&self, memory: &Memory, runs: usize) -> Operands {
        let Small { rows, width, .. } = *self;
        let run = |index| TapSegment {
            first_row: index * rows,
            rows,
            slot: Some(index),
            first_position: 0,
            prompt: rows,
            stage_row: Some(index),
        };
        let encoded: Vec<[i32; 6]> = (0..runs).map(|index| run(index).encode()).collect();
        Ok(vec![
            // The upper half of an f32 is a bf16: two random bf16 are a random f32.
            memory.rotated(runs * rows * width * 2)?,
            vec![memory.of(&encoded)?],
            vec![memory.zeros(runs * width * 4)?],
            vec![memory.zeros(runs * width * 2)?],
        ])
    }

    fn probe(&self, memory: &Memory) -> Operands {
        let Small { rows, width, .. } = *self;
        let mut draw = Rng::new(1);
        let mut floats = |count| {
            let drawn: Vec<f32> = (0..count).map(|_| draw.signed()).collect();
            memory.of(&drawn)
        };
        Ok(vec![
            memory.rotated(rows * width)?,
            memory.rotated(PROBE_UNITS * width)?,
            vec![floats(PROBE_UNITS)?],
            vec![floats(PROBE_BINS * PROBE_UNITS)?],
            vec![floats(PROBE_BINS)?],
            vec![memory.zeros(rows * PROBE_UNITS * 4)?],
            vec![memory.zeros(rows * PROBE_BINS * 4)?],
        ])
    }
}

/// Buffers of one op.
struct Buffers<'a> {
    case: &'a Small,
    buffers: Vec<Vec<Buffer>>,
    /// Index of the buffer with the result.
    result: usize,
}

impl Buffers<'_> {
    /// Addresses for launch number `i`: copies rotate.
    fn addresses<const COUNT: usize>(&mut self, memory: &Memory, i: usize) -> [CUdeviceptr; COUNT] {
        std::array::from_fn(|index| {
            let copies = &mut self.buffers[index];
            let count = copies.len();
            copies[i % count].at(memory)
        })
    }
}

impl Prepared for Buffers<'_> {
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let Memory { device, stream, .. } = *memory;
        let Small { rows, width, .. } = *self.case;
        let plans = self.case.launches();
        // SAFETY: `prepare` made every buffer as the plan says; all live as long as `self`, all
        // work is on one stream, and no two runs share their place.
        unsafe {
            match self.case.op {
                Op::Embed { .. } => {
                    let [table, token, batch_idx, gamma, h, x, ss] = self.addresses(memory, i);
                    let buffers =
                        EmbedBuffers { table, token, last: 0, batch_idx, gamma, h, x, ss };
                    device.launch(stream, &launch::embed(&plans[0], rows, width, &buffers))?;
                }
                Op::TapMean { .. } => {
                    let addresses = self.addresses(memory, i);
                    device.launch(stream, &launch::tap_mean(&plans[0], width, addresses))?;
                }
                Op::Probe => {
                    let addresses = self.addresses(memory, i);
                    let extents = [rows, width, PROBE_UNITS, PROBE_BINS];
                    let plans = step::probe(rows, width, PROBE_UNITS, PROBE_BINS);
                    for launch in launch::probe(&plans, extents, &probe_buffers(addresses)) {
                        device.launch(stream, &launch)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn result(&mut self, memory: &Memory) -> Result<Vec<u32>, Box<dyn Error>> {
        memory.clear(&mut self.buffers[self.result][0])?;
        self.launch(memory, 0)?;
        let written = &self.buffers[self.result][0];
        match self.case.op {
            Op::TapMean { .. } | Op::Probe => memory.read(written),
            Op::Embed { .. } => memory.read_bf16(written),
        }
    }
}

fn probe_buffers(addresses: [CUdeviceptr; 7]) -> ProbeBuffers {
    let [x, hidden_weight, hidden_bias, output_weight, output_bias, hidden_out, probabilities] =
        addresses;
    ProbeBuffers {
        x,
        hidden_weight,
        hidden_bias,
        output_weight,
        output_bias,
        hidden_out,
        probabilities,
    }
}
