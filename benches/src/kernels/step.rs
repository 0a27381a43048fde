//! The small kernels around a step: embedding, the tap's mean, the probe.

use std::error::Error;

use trail_platform::Rng;
use trail_ptx::DevicePtr;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cuda::launch::Launch;
use trail_runtime::cuda::params::{EmbedParams, ProbeParams, TapMeanParams};
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::cuda::plan::step::{self, TapSegment};
use trail_runtime::model::ModelConfig;

use super::cases::{Case, MaxShape, Prepared};
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

/// All small ops, with at most `max.rows` rows.
pub fn small(config: &ModelConfig, max: MaxShape) -> Vec<Box<dyn Case>> {
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
            // Without the prompt's share, once a request.
            Op::Probe => step::probe(rows, width, PROBE_UNITS, PROBE_BINS)[1..].to_vec(),
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
            Op::TapMean { runs } => (self.tap_mean(memory, runs)?, 3),
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
            batch_idx: Some(index),
            prompt: rows,
            stage_row: Some(index),
            ..TapSegment::default()
        };
        let encoded: Vec<[i32; 8]> = (0..runs).map(|index| run(index).encode()).collect();
        let blocks = runs * rows.div_ceil(BLOCK_TOKENS);
        let table: Vec<i32> = (0..blocks as i32).collect();
        Ok(vec![
            // The upper half of an f32 is a bf16: two random bf16 are a random f32.
            memory.rotated(runs * rows * width * 2)?,
            vec![memory.of(&encoded)?],
            vec![memory.of(&table)?],
            // Sums alone, without keys and values.
            vec![memory.zeros(blocks * width * 4)?],
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
            // Of the first class of age, without a prompt's share.
            vec![memory.zeros(rows * 4 * 4)?],
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
    /// Address of buffer `index` for launch number `i`: copies rotate.
    fn at<T>(&mut self, memory: &Memory, i: usize, index: usize) -> DevicePtr<T> {
        let copies = &mut self.buffers[index];
        let count = copies.len();
        copies[i % count].at(memory)
    }

    fn embed(&mut self, memory: &Memory, i: usize) -> EmbedParams {
        let Small { rows, width, .. } = *self.case;
        EmbedParams {
            table: self.at(memory, i, 0),
            token: self.at(memory, i, 1),
            batch_idx: self.at(memory, i, 2),
            gamma: self.at(memory, i, 3),
            h: self.at(memory, i, 4),
            x: self.at(memory, i, 5),
            ss: self.at(memory, i, 6),
            rows: rows as i32,
            d: width as i32,
            parts: step::parts(width) as i32,
            ..EmbedParams::default()
        }
    }

    fn tap_mean(&mut self, memory: &Memory, i: usize) -> TapMeanParams {
        let Small { rows, width, .. } = *self.case;
        TapMeanParams {
            h: self.at(memory, i, 0),
            segments: self.at(memory, i, 1),
            block_table: self.at(memory, i, 2),
            pool: self.at(memory, i, 3),
            stage: self.at(memory, i, 4),
            block_stride: 2 * width as i64,
            max_blocks: rows.div_ceil(BLOCK_TOKENS) as i32,
            d: width as i32,
            ..TapMeanParams::default()
        }
    }

    fn probe(&mut self, memory: &Memory, i: usize) -> ProbeParams {
        ProbeParams {
            x: self.at(memory, i, 0),
            hidden_weight: self.at(memory, i, 1),
            hidden_bias: self.at(memory, i, 2),
            output_weight: self.at(memory, i, 3),
            output_bias: self.at(memory, i, 4),
            hidden_out: self.at(memory, i, 5),
            probabilities: self.at(memory, i, 6),
            inputs: self.at(memory, i, 7),
            rows: self.case.rows as i32,
            d: self.case.width as i32,
            hidden: PROBE_UNITS as i32,
            bins: PROBE_BINS as i32,
            ..ProbeParams::default()
        }
    }
}

impl Prepared for Buffers<'_> {
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let Memory { device, stream, .. } = *memory;
        for plan in self.case.launches() {
            // SAFETY: `prepare` made every buffer as the plan says; all live as long as `self`, all
            // work is on one stream, and no two runs share their place.
            unsafe {
                match self.case.op {
                    Op::Embed { .. } => {
                        let params = self.embed(memory, i);
                        device.launch(stream, &Launch { plan, params })?;
                    }
                    Op::TapMean { .. } => {
                        let params = self.tap_mean(memory, i);
                        device.launch(stream, &Launch { plan, params })?;
                    }
                    Op::Probe => {
                        let params = self.probe(memory, i);
                        device.launch(stream, &Launch { plan, params })?;
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
