//! The small kernels around a step: embedding, the tap's mean, the probe, pieces of KV blocks.

use std::error::Error;

use cudarc::driver::sys::CUdeviceptr;
use trail_base::rng::Lcg;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cuda::launch::{self, EmbedBuffers, ProbeBuffers, TapRun};
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::cuda::plan::step::{self, Direction};
use trail_runtime::model::ModelConfig;

use super::cases::{Case, Most, Prepared};
use super::memory::{Buffer, Memory};

/// Rows of the step around which these are.
const ROWS: usize = 512;
/// Prompts whose rows are averaged, each with as many.
const TAP_RUNS: [usize; 2] = [1, 8];
/// Units and bins of the probe.
const PROBE_UNITS: usize = 512;
const PROBE_BINS: usize = 10;
/// Pieces of one head's keys or values of one block, and of all heads' keys and values.
const HEAD_PIECES: usize = 4096;
const LAYER_PIECES: usize = 512;

/// One of these ops.
enum Op {
    Embed { vocab: usize },
    TapMean { runs: usize },
    Probe,
    Pieces { direction: Direction, elements: usize },
}

/// An op, its rows (pieces, or rows of one run) and their width.
struct Small {
    op: Op,
    rows: usize,
    width: usize,
}

/// All of them, with no more rows than `most` has.
pub fn small(config: &ModelConfig, most: Most) -> Vec<Box<dyn Case>> {
    let width = config.hidden_size;
    let rows = ROWS.min(most.rows);
    let mut ops = vec![(Op::Embed { vocab: config.vocab_size }, rows)];
    ops.extend(TAP_RUNS.map(|runs| (Op::TapMean { runs }, rows)));
    ops.push((Op::Probe, rows));
    let head = BLOCK_TOKENS * config.head_dim;
    let layer = 2 * config.num_kv_heads * head;
    for (pieces, elements) in [(HEAD_PIECES, head), (LAYER_PIECES, layer)] {
        for direction in [Direction::Gather, Direction::Scatter] {
            ops.push((Op::Pieces { direction, elements }, pieces.min(most.rows)));
        }
    }
    let case = |(op, rows)| Box::new(Small { op, rows, width }) as Box<dyn Case>;
    ops.into_iter().map(case).collect()
}

impl Case for Small {
    fn op(&self) -> &'static str {
        match self.op {
            Op::Embed { .. } => "embed",
            Op::TapMean { .. } => "tap_mean",
            Op::Probe => "probe",
            Op::Pieces { direction: Direction::Gather, .. } => "kv_gather",
            Op::Pieces { direction: Direction::Scatter, .. } => "kv_scatter",
        }
    }

    fn launches(&self) -> Vec<LaunchPlan> {
        let Small { rows, width, .. } = *self;
        match self.op {
            Op::Embed { .. } => vec![step::embed(rows, width)],
            Op::TapMean { runs } => vec![step::tap_mean(runs, runs * rows, width)],
            Op::Probe => step::probe(rows, width, PROBE_UNITS, PROBE_BINS).to_vec(),
            Op::Pieces { direction, elements } => vec![step::kv_pieces(direction, rows, elements)],
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
            Op::Pieces { direction: Direction::Gather, elements } => {
                (self.pieces(memory, elements)?, 1)
            }
            Op::Pieces { direction: Direction::Scatter, elements } => {
                (self.pieces(memory, elements)?, 0)
            }
        };
        Ok(Box::new(Buffers { case: self, buffers, result }))
    }
}

/// Each op's memory, in the order in which [`Buffers::addresses`] hands it to the launch; several copies of what would stay in L2.
type Operands = Result<Vec<Vec<Buffer>>, Box<dyn Error>>;

impl Small {
    fn embed(&self, memory: &Memory, vocab: usize) -> Operands {
        let Small { rows, width, .. } = *self;
        let mut draw = Lcg::new(1);
        let mut tokens = || (0..rows).map(|_| draw.below(vocab) as i32).collect::<Vec<_>>();
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
        let run = |index| TapRun {
            first_row: index * rows,
            rows,
            slot: Some(index),
            first_position: 0,
            prompt: rows,
            stage_row: Some(index),
        };
        let encoded: Vec<[i32; 6]> = (0..runs).map(|index| run(index).encode()).collect();
        Ok(vec![
            // The upper half of an f32 is a bf16: two random ones are a random f32.
            memory.rotated(runs * rows * width * 2)?,
            vec![memory.of(&encoded)?],
            vec![memory.zeros(runs * width * 4)?],
            vec![memory.zeros(runs * width * 2)?],
        ])
    }

    fn probe(&self, memory: &Memory) -> Operands {
        let Small { rows, width, .. } = *self;
        let mut draw = Lcg::new(1);
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

    fn pieces(&self, memory: &Memory, elements: usize) -> Operands {
        let places = Lcg::new(1).permutation(self.rows);
        let offsets: Vec<i64> =
            places.iter().map(|&place| i64::from(place) * elements as i64).collect();
        Ok(vec![
            memory.rotated(self.rows * elements)?,
            memory.rotated(self.rows * elements)?,
            vec![memory.of(&offsets)?],
        ])
    }
}

/// The memory of one op.
struct Buffers<'a> {
    case: &'a Small,
    buffers: Vec<Vec<Buffer>>,
    /// Which of them holds the result.
    result: usize,
}

impl Buffers<'_> {
    /// Of launch number `i`: copies go round.
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
        // SAFETY: `prepare` made every buffer as the plan says; all live as long as `self`, all work is on one stream, and no
        // two runs or pieces share their place.
        unsafe {
            match self.case.op {
                Op::Embed { .. } => {
                    let [table, token, slot, gamma, h, x, ss] = self.addresses(memory, i);
                    let buffers = EmbedBuffers { table, token, last: 0, slot, gamma, h, x, ss };
                    launch::embed(device, stream, &plans[0], rows, width, &buffers)?;
                }
                Op::TapMean { .. } => {
                    let addresses = self.addresses(memory, i);
                    launch::tap_mean(device, stream, &plans[0], width, addresses)?;
                }
                Op::Probe => {
                    let addresses = self.addresses(memory, i);
                    let extents = [rows, width, PROBE_UNITS, PROBE_BINS];
                    let plans = step::probe(rows, width, PROBE_UNITS, PROBE_BINS);
                    launch::probe(device, stream, &plans, extents, &probe_buffers(addresses))?;
                }
                Op::Pieces { elements, .. } => {
                    let addresses = self.addresses(memory, i);
                    launch::kv_pieces(device, stream, &plans[0], [rows, elements], addresses)?;
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
            Op::Embed { .. } | Op::Pieces { .. } => memory.read_bf16(written),
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
