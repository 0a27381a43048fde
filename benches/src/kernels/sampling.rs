//! Sampling of tokens from logits.

use std::error::Error;

use trail_platform::Rng;
use trail_runtime::cuda::launch::{self, RowPlace, SamplerBuffers};
use trail_runtime::cuda::params::RowSampled;
use trail_runtime::cuda::plain;
use trail_runtime::cuda::plan::sampling::{self, SamplingPlan};
use trail_runtime::cuda::plan::{Chip, LaunchPlan};
use trail_runtime::engine::SamplingParams;
use trail_runtime::model::ModelConfig;

use super::cases::{Case, Limits, Prepared};
use super::memory::{Buffer, Memory};

const ROWS: [usize; 3] = [1, 64, 256];
/// Scale of the logits: the nucleus of 0.95 is then about 4000 of 128256 tokens.
const PEAK: f32 = 18.0;

/// Greedy and top-p sampling of at most `most.rows` rows, top-p with and without teams of blocks.
pub fn sampling(config: &ModelConfig, chip: &Chip, max: Limits) -> Vec<Box<dyn Case>> {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let top_p = SamplingParams { top_p: 0.95, ..SamplingParams::default() };
    let mut shapes = ROWS.map(|rows| rows.min(max.rows)).to_vec();
    shapes.dedup();
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for rows in shapes {
        let whole = sampling::sampling(rows, config.vocab_size, 1);
        let team = sampling::team(chip, rows, config.vocab_size);
        let teams = sampling::sampling(rows, config.vocab_size, team);
        cases.push(Box::new(SamplerCase {
            op: "sample_greedy",
            plan: whole,
            params: greedy.clone(),
        }));
        for plan in if team > 1 { vec![whole, teams] } else { vec![whole] } {
            cases.push(Box::new(SamplerCase { op: "sample_top_p", plan, params: top_p.clone() }));
        }
    }
    cases
}

/// One sampling method.
struct SamplerCase {
    op: &'static str,
    plan: SamplingPlan,
    params: SamplingParams,
}

impl Case for SamplerCase {
    fn op(&self) -> &'static str {
        self.op
    }

    fn launches(&self) -> Vec<LaunchPlan> {
        self.plan.launches.to_vec()
    }

    fn rows(&self) -> usize {
        self.plan.rows
    }

    fn prepare(&self, memory: &Memory) -> Result<Box<dyn Prepared + '_>, Box<dyn Error>> {
        let SamplingPlan { rows, vocab, .. } = self.plan;
        let stride = vocab.next_multiple_of(4);
        let mut draw = Rng::new(1);
        let logits: Vec<f32> = (0..rows * stride).map(|_| draw.signed().powi(3) * PEAK).collect();
        let copies = memory.copies(rows * stride * 4);
        let row_sampling: Vec<_> = (0..rows)
            .map(|row| {
                let place = RowPlace {
                    row: Some(row),
                    token_counts_row: None,
                    batch_idx: row,
                    position: row as u32,
                };
                launch::row_sampling(&self.params, place)
            })
            .collect();
        Ok(Box::new(Buffers {
            plan: &self.plan,
            stride,
            logits: (0..copies).map(|_| memory.of(&logits)).collect::<Result<_, _>>()?,
            row_sampling: memory.of(plain::bytes_of(&row_sampling))?,
            weights: memory.zeros(self.plan.weights * 4)?,
            sums: memory.zeros(5 * self.plan.sums * 4)?,
            team_sums: memory.zeros(self.plan.team_sums * 4)?,
            band: memory.zeros(self.plan.band * 8)?,
            band_count: memory.zeros(rows * 4)?,
            team_barriers: memory.zeros(rows * 4)?,
            sampled: memory.zeros(rows * size_of::<trail_ptx::params::RowSampled>())?,
            step_seq: memory.zeros(4)?,
        }))
    }
}

/// Buffers of the sampler; see [`SamplerBuffers`].
struct Buffers<'a> {
    plan: &'a SamplingPlan,
    stride: usize,
    logits: Vec<Buffer>,
    row_sampling: Buffer,
    weights: Buffer,
    sums: Buffer,
    team_sums: Buffer,
    band: Buffer,
    band_count: Buffer,
    team_barriers: Buffer,
    sampled: Buffer,
    step_seq: Buffer,
}

impl Prepared for Buffers<'_> {
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let copies = self.logits.len();
        let buffers = SamplerBuffers {
            logits: self.logits[i % copies].at(memory),
            stride: self.stride,
            row_sampling: self.row_sampling.at(memory),
            token_counts: 0,
            weights: self.weights.at(memory),
            sums: self.sums.at(memory),
            team_sums: self.team_sums.at(memory),
            band: self.band.at(memory),
            band_count: self.band_count.at(memory),
            team_barriers: self.team_barriers.at(memory),
            sampled: self.sampled.at(memory),
            last: 0,
            step_seq: self.step_seq.at(memory),
        };
        for launch in launch::sample(self.plan, &buffers) {
            // SAFETY: `prepare` made every buffer as the plan says; all live as long as `self`, and
            // all work is on one stream.
            unsafe { memory.device.launch(memory.stream, &launch)? };
        }
        Ok(())
    }

    /// Token, its logit, largest logit and sum of exponentials of each row.
    fn result(&mut self, memory: &Memory) -> Result<Vec<u32>, Box<dyn Error>> {
        memory.clear(&mut self.sampled)?;
        self.launch(memory, 0)?;
        let rows = plain::read_all::<RowSampled>(&memory.read::<u8>(&self.sampled)?);
        let figures =
            rows.iter().flat_map(|row| [row.token as f32, row.logit, row.max, row.sum as f32]);
        Ok(figures.map(f32::to_bits).collect())
    }
}
