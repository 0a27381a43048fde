//! The matrix products of a layer.

use std::error::Error;

use trail_ptx::Target;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cuda::launch;
use trail_runtime::cuda::params::{
    GemmOperands, LogitsParams, QkvParams, ResidualParams, RowScale, SwigluParams, TensorMap,
    WgmmaQkvParams, WgmmaResidualParams, WgmmaSwigluParams,
};
use trail_runtime::cuda::plan::gemm::{Epilogue, GemmPlan, Product, gemm};
use trail_runtime::cuda::plan::hopper::wgmma;
use trail_runtime::cuda::plan::{Chip, LaunchPlan};
use trail_runtime::model::ModelConfig;

use super::cases::{Case, Prepared};
use super::memory::{Buffer, Memory};

/// Most rows with logits in one step.
const MAX_LOGIT_ROWS: usize = 256;

/// One product of one layer.
struct Projection {
    op: &'static str,
    plan: GemmPlan,
    family: Family,
    heads: Heads,
}

/// Head counts and dimension for the QKV projection.
#[derive(Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// The products of a step with `rows` rows, in order of the step; on Hopper also by its own
/// kernels, where there are.
pub fn products(config: &ModelConfig, rows: usize, chip: &Chip) -> Vec<Box<dyn Case>> {
    let heads =
        Heads { heads: config.num_heads, kv_heads: config.num_kv_heads, head_dim: config.head_dim };
    let case = |planned| {
        let Planned { op, plan, family } = planned;
        Box::new(Projection { op, plan, family, heads }) as Box<dyn Case>
    };
    plans(config, rows, chip).into_iter().map(case).collect()
}

/// Kinds of kernels that compute the same product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `skinny_*` and `tiled_*`.
    Portable,
    /// Hopper's of many rows, by wgmma.
    Wgmma,
    /// The same in clusters of two blocks.
    Cluster,
}

/// The plan of one product.
pub struct Planned {
    /// Name of the op within a step.
    pub op: &'static str,
    /// The plan.
    pub plan: GemmPlan,
    /// Kind of its kernel.
    pub family: Family,
}

/// The plans of [`products`].
pub fn plans(config: &ModelConfig, rows: usize, chip: &Chip) -> Vec<Planned> {
    let (d, hd) = (config.hidden_size, config.head_dim);
    let products = [
        ("qkv", Epilogue::Qkv, (config.num_heads + 2 * config.num_kv_heads) * hd, d),
        ("o", Epilogue::Residual, d, config.num_heads * hd),
        ("gate_up", Epilogue::Swiglu, 2 * config.intermediate_size, d),
        ("down", Epilogue::Residual, d, config.intermediate_size),
        ("lm_head", Epilogue::Logits, config.vocab_size, d),
    ];
    let hopper = chip.target == Some(Target::Sm90a);
    let mut plans = Vec::new();
    for (op, epilogue, features, width) in products {
        if epilogue == Epilogue::Logits && rows > MAX_LOGIT_ROWS {
            continue;
        }
        let product = Product { epilogue, rows, features, width };
        plans.push(Planned { op, plan: gemm(chip, product), family: Family::Portable });
        let own = if hopper { wgmma::candidates(chip, product) } else { Vec::new() };
        plans.extend(own.into_iter().map(|of| {
            let is_cluster = of.plan.launch.grid[1] > 1;
            let family = if is_cluster { Family::Cluster } else { Family::Wgmma };
            Planned { op, plan: of.plan, family }
        }));
    }
    plans
}

impl Case for Projection {
    fn op(&self) -> &'static str {
        self.op
    }

    fn launches(&self) -> Vec<LaunchPlan> {
        vec![self.plan.launch]
    }

    fn rows(&self) -> usize {
        self.plan.product.rows
    }

    fn prepare(&self, memory: &Memory) -> Result<Box<dyn Prepared + '_>, Box<dyn Error>> {
        Ok(Box::new(Buffers::new(self, memory)?))
    }
}

/// Buffers of one product.
struct Buffers<'a> {
    case: &'a Projection,
    x: Buffer,
    /// TMA descriptor of `x` (Hopper).
    map: Option<TensorMap>,
    w: Vec<Buffer>,
    partials: Buffer,
    tile_counters: Buffer,
    /// Partial sums of squares of the rows, of input or output.
    ss: Buffer,
    /// Queries, next operand, inner activations (bf16), or logits (f32).
    out: Buffer,
    /// Residual stream f32.
    h: Buffer,
    gamma: Buffer,
    kv_pool: Buffer,
    position: Buffer,
    batch_idx: Buffer,
    block_table: Buffer,
    rope_freqs: Buffer,
}

impl<'a> Buffers<'a> {
    fn new(case: &'a Projection, memory: &Memory) -> Result<Buffers<'a>, Box<dyn Error>> {
        let GemmPlan { product, features, width, .. } = case.plan;
        let Product { rows, epilogue, .. } = product;
        let Heads { kv_heads, head_dim, .. } = case.heads;
        let parts = product.width.max(product.features).div_ceil(128);
        let residual = if epilogue == Epilogue::Residual { rows * product.features } else { 0 };
        let blocks = rows.div_ceil(BLOCK_TOKENS);
        let pool =
            if epilogue == Epilogue::Qkv { blocks * block_elements(kv_heads, head_dim) } else { 0 };
        let frequencies: Vec<f64> =
            (0..head_dim / 2).map(|i| 1e4_f64.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        let mut x = memory.random(rows * product.width)?;
        let map = || launch::activation_map(x.at(memory), rows, product.width);
        let map = matches!(case.family, Family::Wgmma | Family::Cluster).then(map);
        Ok(Buffers {
            case,
            x,
            map: map.transpose()?,
            w: memory.rotated(features * width)?,
            partials: memory.zeros(case.plan.partial_floats * 4)?,
            tile_counters: memory.zeros(case.plan.tile_counters * 4)?,
            ss: memory.of(&vec![1.0_f32; rows * parts])?,
            out: memory
                .zeros(rows * features * if epilogue == Epilogue::Logits { 4 } else { 2 })?,
            h: memory.zeros(residual * 4)?,
            gamma: memory.random(product.features)?,
            kv_pool: memory.zeros(pool * 2)?,
            position: memory.of(&(0..rows as i32).collect::<Vec<_>>())?,
            batch_idx: memory.of(&vec![0_i32; rows])?,
            block_table: memory.of(&(0..blocks as i32).collect::<Vec<_>>())?,
            rope_freqs: memory.of(&launch::rope_freqs(&frequencies))?,
        })
    }

    fn operands(&mut self, memory: &Memory, i: usize) -> GemmOperands {
        let copies = self.w.len();
        GemmOperands {
            x: self.x.at(memory),
            w: self.w[i % copies].at(memory),
            partials: self.partials.at(memory),
            tile_counters: self.tile_counters.at(memory),
            ..GemmOperands::default()
        }
    }

    fn row_scale(&mut self, memory: &Memory) -> RowScale {
        let width = self.case.plan.product.width;
        let (ss, parts) = (self.ss.at(memory), width.div_ceil(128) as i32);
        RowScale { ss, parts, width: width as i32, eps: 1e-5, reserved: 0 }
    }

    fn qkv(&mut self, memory: &Memory, i: usize) -> QkvParams {
        let Heads { heads, kv_heads, head_dim } = self.case.heads;
        QkvParams {
            gemm: self.operands(memory, i),
            scale: self.row_scale(memory),
            q: self.out.at(memory),
            kv_pool: self.kv_pool.at(memory),
            position: self.position.at(memory),
            batch_idx: self.batch_idx.at(memory),
            block_table: self.block_table.at(memory),
            rope_freqs: self.rope_freqs.at(memory),
            block_stride: block_elements(kv_heads, head_dim) as i64,
            max_blocks: self.case.rows().div_ceil(BLOCK_TOKENS) as i32,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            head_dim: head_dim as i32,
            ..QkvParams::default()
        }
    }

    fn residual(&mut self, memory: &Memory, i: usize) -> ResidualParams {
        ResidualParams {
            gemm: self.operands(memory, i),
            h: self.h.at(memory),
            gamma: self.gamma.at(memory),
            x_next: self.out.at(memory),
            ss: self.ss.at(memory),
            ..ResidualParams::default()
        }
    }

    fn swiglu(&mut self, memory: &Memory, i: usize) -> SwigluParams {
        let (gemm, scale) = (self.operands(memory, i), self.row_scale(memory));
        SwigluParams { gemm, scale, out: self.out.at(memory), ..SwigluParams::default() }
    }
}

impl Prepared for Buffers<'_> {
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let plan = &self.case.plan;
        let Memory { device, stream, .. } = *memory;
        // SAFETY: every buffer has the extents that the plan asks for (`new`), lives as long as
        // `self`, which outlives the stream's work on it, and all work is on one stream. The map is
        // of `x`.
        unsafe {
            match (plan.product.epilogue, self.map) {
                (Epilogue::Qkv, None) => {
                    device.launch(stream, &launch::qkv(plan, self.qkv(memory, i)))?;
                }
                (Epilogue::Residual, None) => {
                    device.launch(stream, &launch::residual(plan, self.residual(memory, i)))?;
                }
                (Epilogue::Swiglu, None) => {
                    device.launch(stream, &launch::swiglu(plan, self.swiglu(memory, i)))?;
                }
                (Epilogue::Logits, _) => {
                    let (gemm, scale) = (self.operands(memory, i), self.row_scale(memory));
                    let params = LogitsParams { gemm, scale, logits: self.out.at(memory) };
                    device.launch(stream, &launch::logits(plan, params))?;
                }
                (Epilogue::Qkv, Some(x)) => {
                    let params = WgmmaQkvParams { x, base: self.qkv(memory, i) };
                    device.launch(stream, &launch::wgmma_qkv(plan, params))?;
                }
                (Epilogue::Residual, Some(x)) => {
                    let params = WgmmaResidualParams { x, base: self.residual(memory, i) };
                    device.launch(stream, &launch::wgmma_residual(plan, params))?;
                }
                (Epilogue::Swiglu, Some(x)) => {
                    let params = WgmmaSwigluParams { x, base: self.swiglu(memory, i) };
                    device.launch(stream, &launch::wgmma_swiglu(plan, params))?;
                }
            }
        }
        Ok(())
    }

    /// The residual stream starts as zeros.
    fn result(&mut self, memory: &Memory) -> Result<Vec<u32>, Box<dyn Error>> {
        memory.clear(&mut self.h)?;
        memory.clear(&mut self.out)?;
        self.launch(memory, 0)?;
        match self.case.plan.product.epilogue {
            Epilogue::Logits => memory.read(&self.out),
            _ => memory.read_bf16(&self.out),
        }
    }
}

/// Elements of one KV block of one layer.
fn block_elements(kv_heads: usize, head_dim: usize) -> usize {
    2 * kv_heads * BLOCK_TOKENS * head_dim
}
