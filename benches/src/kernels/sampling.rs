//! Sampling of tokens from logits.

use std::error::Error;

use trail_platform::Rng;
use trail_runtime::cuda::launch;
use trail_runtime::cuda::params::{RowSampled, RowSampling, SampleParams};
use trail_runtime::cuda::plain;
use trail_runtime::cuda::plan::sampling::{self, SamplingPlan};
use trail_runtime::cuda::plan::{Chip, LaunchPlan};
use trail_runtime::engine::SamplingParams;
use trail_runtime::model::ModelConfig;

use super::cases::{Case, MaxShape, Prepared};
use super::memory::{Buffer, Kept, Memory};

const ROWS: [usize; 3] = [1, 64, 256];
/// Scale of the logits: the nucleus of 0.95 is then about 4000 of 128256 tokens.
const PEAK: f32 = 18.0;

/// Greedy and top-p sampling of at most `max.rows` rows, top-p with and without teams of blocks.
pub fn sampling(config: &ModelConfig, chip: &Chip, max: MaxShape) -> Vec<Box<dyn Case>> {
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
        let row_sampling: Vec<_> = (0..rows as i32)
            .map(|row| RowSampling {
                row,
                token_counts_row: -1,
                batch_idx: row,
                position: row as u32,
                ..launch::row_sampling(&self.params)
            })
            .collect();
        let logits = (0..copies).map(|_| memory.of(&logits)).collect::<Result<_, _>>()?;
        let mut kept = Kept::default();
        let mut sampled = memory.zeros(rows * size_of::<RowSampled>())?;
        let params = SampleParams {
            stride: stride as i32,
            row_sampling: kept.keep(memory, memory.of(plain::bytes_of(&row_sampling))?),
            weights: kept.keep(memory, memory.zeros(self.plan.weights * 4)?),
            block_max: kept.keep(memory, memory.zeros(5 * self.plan.sums * 4)?),
            team_sums: kept.keep(memory, memory.zeros(self.plan.team_sums * 4)?),
            band: kept.keep(memory, memory.zeros(self.plan.band * 8)?),
            band_count: kept.keep(memory, memory.zeros(rows * 4)?),
            team_barriers: kept.keep(memory, memory.zeros(rows * 4)?),
            sampled: sampled.at(memory),
            step_seq: kept.keep(memory, memory.zeros(4)?),
            ..SampleParams::default()
        };
        Ok(Box::new(Buffers { plan: &self.plan, logits, params, sampled, _kept: kept }))
    }
}

/// Buffers of the sampler.
struct Buffers<'a> {
    plan: &'a SamplingPlan,
    logits: Vec<Buffer>,
    params: SampleParams,
    sampled: Buffer,
    _kept: Kept,
}

impl Prepared for Buffers<'_> {
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let copies = self.logits.len();
        let params = SampleParams { logits: self.logits[i % copies].at(memory), ..self.params };
        for launch in launch::sample(self.plan, params) {
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
