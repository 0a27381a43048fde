//! The matrix products of a layer, and the ceilings: inputs, launches, and a check that repeated launches agree.

use std::error::Error;

use trail_runtime::batch::BLOCK_TOKENS;
use trail_runtime::cuda::launch::{
    self, Norm, Operands, QkvOutput, ResidualOutput, ceiling_mma as launch_mma,
    ceiling_read as launch_read,
};
use trail_runtime::cuda::plan::gemm::{End, GemmPlan, Product, gemm};
use trail_runtime::cuda::plan::{Chip, LaunchPlan, ceiling};
use trail_runtime::model::ModelConfig;

use super::memory::{Buffer, Memory};
use super::timer::{Timer, Timing};

/// Most rows whose logits anyone wants in one step.
const MOST_LOGIT_ROWS: usize = 256;

/// One product of one layer, for some rows.
pub struct Case {
    op: &'static str,
    plan: GemmPlan,
    heads: Heads,
}

/// What the query, key and value projection must know.
#[derive(Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// The products of a model's step with some rows, in the order of the step.
pub fn products(config: &ModelConfig, rows: usize, chip: &Chip) -> Vec<Case> {
    let (d, hd) = (config.hidden_size, config.head_dim);
    let heads = Heads { heads: config.num_heads, kv_heads: config.num_kv_heads, head_dim: hd };
    let products = [
        ("qkv", End::Qkv, (heads.heads + 2 * heads.kv_heads) * hd, d),
        ("o", End::Residual, d, heads.heads * hd),
        ("gate_up", End::Swiglu, 2 * config.intermediate_size, d),
        ("down", End::Residual, d, config.intermediate_size),
        ("lm_head", End::Logits, config.vocab_size, d),
    ];
    products
        .into_iter()
        .filter(|&(_, end, ..)| end != End::Logits || rows <= MOST_LOGIT_ROWS)
        .map(|(op, end, features, width)| {
            let plan = gemm(chip, Product { end, rows, features, width });
            Case { op, plan, heads }
        })
        .collect()
}

impl Case {
    /// The projection's name.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Its launch.
    pub fn plan(&self) -> &LaunchPlan {
        &self.plan.launch
    }

    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.plan.product.rows
    }

    /// Times the product, and checks that the same inputs give the same finite outputs before and after.
    pub fn measure(&self, memory: &Memory, timer: &Timer) -> Result<Timing, Box<dyn Error>> {
        let mut operands = Buffers::new(self, memory)?;
        let before = operands.result(memory)?;
        let timing = timer.time(|i| operands.launch(memory, i))?;
        let after = operands.result(memory)?;
        let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
        if before != after {
            return Err(format!("{}: results differ between launches", self.plan.launch).into());
        }
        if !before.iter().all(finite) || before.iter().all(|&bits| bits == 0) {
            return Err(format!("{}: no sensible result", self.plan.launch).into());
        }
        Ok(timing)
    }
}

/// The memory of one case.
struct Buffers<'a> {
    case: &'a Case,
    x: Buffer,
    w: Vec<Buffer>,
    partials: Buffer,
    arrivals: Buffer,
    /// Partial sums of squares of the rows: of the input, or of the output.
    ss: Buffer,
    /// Queries, next operand, inner activations (bf16), or logits (f32).
    out: Buffer,
    /// Residual stream f32.
    h: Buffer,
    gamma: Buffer,
    kv_pool: Buffer,
    position: Buffer,
    slot: Buffer,
    block_table: Buffer,
    turns: Buffer,
}

impl<'a> Buffers<'a> {
    fn new(case: &'a Case, memory: &Memory) -> Result<Buffers<'a>, Box<dyn Error>> {
        let GemmPlan { product, features, width, .. } = case.plan;
        let Product { rows, end, .. } = product;
        let Heads { kv_heads, head_dim, .. } = case.heads;
        let parts = product.width.max(product.features).div_ceil(128);
        let residual = if end == End::Residual { rows * product.features } else { 0 };
        let blocks = rows.div_ceil(BLOCK_TOKENS);
        let pool = if end == End::Qkv { blocks * block_elements(kv_heads, head_dim) } else { 0 };
        let frequencies: Vec<f64> =
            (0..head_dim / 2).map(|i| 1e4_f64.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        Ok(Buffers {
            case,
            x: memory.random(rows * product.width)?,
            w: memory.rotated(features * width)?,
            partials: memory.zeros(case.plan.partial_floats * 4)?,
            arrivals: memory.zeros(case.plan.arrivals * 4)?,
            ss: memory.of(&vec![1.0_f32; rows * parts])?,
            out: memory.zeros(rows * features * if end == End::Logits { 4 } else { 2 })?,
            h: memory.zeros(residual * 4)?,
            gamma: memory.random(product.features)?,
            kv_pool: memory.zeros(pool * 2)?,
            position: memory.of(&(0..rows as i32).collect::<Vec<_>>())?,
            slot: memory.of(&vec![0_i32; rows])?,
            block_table: memory.of(&(0..blocks as i32).collect::<Vec<_>>())?,
            turns: memory.of(&launch::turns(&frequencies))?,
        })
    }

    /// The product once, from a residual stream of zeros, with the first weights.
    fn result(&mut self, memory: &Memory) -> Result<Vec<u32>, Box<dyn Error>> {
        memory.clear(&mut self.h)?;
        self.launch(memory, 0)?;
        let out = memory.read::<u32>(&self.out)?;
        if self.case.plan.product.end == End::Logits {
            return Ok(out);
        }
        // Two bf16 a word, each widened by itself.
        Ok(out.iter().flat_map(|&pair| [pair << 16, pair & 0xffff_0000]).collect())
    }

    /// Launch number `i`: the weights go round.
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let plan = &self.case.plan;
        let copies = self.w.len();
        let from = Operands {
            x: self.x.at(memory),
            w: self.w[i % copies].at(memory),
            row_list: 0,
            partials: self.partials.at(memory),
            arrivals: self.arrivals.at(memory),
        };
        let product = plan.product;
        let parts = product.width.div_ceil(128);
        let norm = Norm { ss: self.ss.at(memory), parts, width: product.width, eps: 1e-5 };
        let Memory { device, stream, .. } = *memory;
        let out = self.out.at(memory);
        // SAFETY: every buffer has the extents that the plan asks for (`new`), lives as long as `self`, which outlives the
        // stream's work on it, and all work is on one stream.
        unsafe {
            match product.end {
                End::Qkv => launch::qkv(device, stream, plan, &from, &norm, &self.qkv(memory))?,
                End::Residual => {
                    launch::residual(device, stream, plan, &from, &self.residual(memory))?;
                }
                End::Swiglu => launch::swiglu(device, stream, plan, &from, &norm, out)?,
                End::Logits => launch::logits(device, stream, plan, &from, &norm, out)?,
            }
        }
        Ok(())
    }

    fn qkv(&mut self, memory: &Memory) -> QkvOutput {
        let Heads { heads, kv_heads, head_dim } = self.case.heads;
        QkvOutput {
            q: self.out.at(memory),
            kv_pool: self.kv_pool.at(memory),
            position: self.position.at(memory),
            slot: self.slot.at(memory),
            block_table: self.block_table.at(memory),
            turns: self.turns.at(memory),
            block_stride: block_elements(kv_heads, head_dim),
            layer_offset: 0,
            max_blocks: self.case.rows().div_ceil(BLOCK_TOKENS),
            heads,
            kv_heads,
            head_dim,
        }
    }

    fn residual(&mut self, memory: &Memory) -> ResidualOutput {
        ResidualOutput {
            h: self.h.at(memory),
            gamma: self.gamma.at(memory),
            x_next: self.out.at(memory),
            ss: self.ss.at(memory),
            tap_row: 0,
            tap: 0,
        }
    }
}

/// Elements of one KV block of one layer.
fn block_elements(kv_heads: usize, head_dim: usize) -> usize {
    2 * kv_heads * BLOCK_TOKENS * head_dim
}

/// Reads `mib` MiB, more than any cache holds; the sums are checked against the words.
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
        let (at, to) = (data.at(memory), sums.at(memory));
        // SAFETY: `data` has so many pieces, `sums` a word for each block; both outlive the work.
        unsafe { launch_read(memory.device, memory.stream, at, words / 4, to)? };
        Ok(())
    })?;
    let sum = |words: &[u32]| words.iter().fold(0, |sum: u32, &word| sum.wrapping_add(word));
    if sum(&memory.read::<u32>(&sums)?) != sum(&memory.read::<u32>(&data)?) {
        return Err("the read ceiling did not read everything".into());
    }
    Ok((plan, timing))
}

/// Multiplies registers, `rounds` times; each sum is checked.
pub fn ceiling_mma(
    memory: &Memory,
    timer: &Timer,
    rounds: usize,
) -> Result<(LaunchPlan, Timing), Box<dyn Error>> {
    let plan = ceiling::mma(memory.device.chip(), rounds);
    let mut sums = memory.zeros((plan.grid[0] * plan.block) as usize * 4)?;
    let timing = timer.time(|_| {
        let to = sums.at(memory);
        // SAFETY: `sums` has a word for each thread, and outlives the work.
        unsafe { launch_mma(memory.device, memory.stream, rounds, to)? };
        Ok(())
    })?;
    if memory.read::<f32>(&sums)?.iter().any(|&sum| sum != 32.0 * rounds as f32) {
        return Err("the matrix ceiling's sums are wrong".into());
    }
    Ok((plan, timing))
}
