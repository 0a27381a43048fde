//! Attention: decode rows, and causal chunks of prompts.

use std::error::Error;

use trail_platform::Rng;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cuda::launch;
use trail_runtime::cuda::params::{
    DecodeAttentionParams, PagedKv, PrefillAttentionParams, TensorMap, WgmmaAttentionParams,
};
use trail_runtime::cuda::plan::attention::split::PrefillSplit;
use trail_runtime::cuda::plan::attention::{self, DecodePlan, Heads, PrefillSegment};
use trail_runtime::cuda::plan::{Chip, LaunchPlan, hopper};
use trail_runtime::model::ModelConfig;

use super::cases::{Case, MaxShape, Prepared};
use super::memory::{Buffer, Kept, Memory};

/// (Requests, context tokens) of the decode cases.
const DECODES: [(usize, usize); 6] =
    [(1, 4096), (1, 32_768), (8, 8192), (32, 4096), (64, 1024), (256, 1024)];
/// (Rows of the chunk, tokens before it) of the prefill cases.
const CHUNKS: [(usize, usize); 8] = [
    (1024, 0),
    (4096, 0),
    (8192, 0),
    (512, 3584),
    (128, 8192),
    (512, 8192),
    (128, 32_768),
    (512, 32_768),
];

/// All cases, none larger than `max`; none if no kernel supports this head dimension.
pub fn attention(config: &ModelConfig, chip: &Chip, max: MaxShape) -> Vec<Box<dyn Case>> {
    if !attention::supports(config.head_dim) {
        return Vec::new();
    }
    let heads = heads(config);
    let decode = |rows: usize, context: usize| (rows.min(max.rows), context.min(max.context));
    let chunk = |rows: usize, context: usize| {
        let rows = rows.min(max.rows).min(max.context);
        (rows, context.min(max.context - rows))
    };
    let mut decodes = DECODES.map(|(rows, context)| decode(rows, context)).to_vec();
    let mut chunks = CHUNKS.map(|(rows, context)| chunk(rows, context)).to_vec();
    decodes.dedup();
    chunks.dedup();
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for (rows, context) in decodes {
        let plan = attention::decode(chip, rows, heads, context);
        cases.push(Box::new(Decode { plan, rows, context }));
    }
    for (rows, context) in chunks {
        let portable = Prefill::new(heads, rows, context);
        let cut = portable.cut(chip);
        let own = Prefill::wgmma(chip, heads, rows, context);
        let own_cut = own.as_ref().and_then(|own| own.cut(chip));
        let all = [Some(portable), cut, own, own_cut].into_iter().flatten();
        cases.extend(all.map(|prefill| Box::new(prefill) as Box<dyn Case>));
    }
    cases
}

fn heads(config: &ModelConfig) -> Heads {
    Heads {
        kv_heads: config.num_kv_heads,
        group: config.num_heads / config.num_kv_heads,
        head_dim: config.head_dim,
    }
}

/// The launch for `rows` decode rows of requests with `context` tokens each.
pub fn decode_launch(
    config: &ModelConfig,
    chip: &Chip,
    rows: usize,
    context: usize,
) -> Option<LaunchPlan> {
    let supported = attention::supports(config.head_dim);
    supported.then(|| attention::decode(chip, rows, heads(config), context).launch)
}

/// The launch for a prompt of `rows` tokens.
pub fn prefill_launch(config: &ModelConfig, rows: usize) -> Option<LaunchPlan> {
    let supported = attention::supports(config.head_dim);
    supported.then(|| Prefill::new(heads(config), rows, 0).plan)
}

/// The same by Hopper's own kernel, where `chip` has it.
pub fn wgmma_prefill_launch(config: &ModelConfig, chip: &Chip, rows: usize) -> Option<LaunchPlan> {
    Prefill::wgmma(chip, heads(config), rows, 0).map(|prefill| prefill.plan)
}

/// Decode rows of requests with `context` tokens each, these rows included.
struct Decode {
    plan: DecodePlan,
    rows: usize,
    context: usize,
}

impl Case for Decode {
    fn op(&self) -> &'static str {
        "attention_decode"
    }

    fn launches(&self) -> Vec<LaunchPlan> {
        vec![self.plan.launch]
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn context(&self) -> Option<usize> {
        Some(self.context)
    }

    fn prepare(&self, memory: &Memory) -> Result<Box<dyn Prepared + '_>, Box<dyn Error>> {
        let Decode { ref plan, rows, context } = *self;
        let kv = Paged::new(memory, plan.heads, rows, context)?;
        let mut kept = Kept::default();
        let mut out = memory.zeros(rows * plan.heads.row() * 2)?;
        let params = DecodeAttentionParams {
            q: kept.keep(memory, memory.random(rows * plan.heads.row())?),
            position: kept.keep(memory, memory.of(&vec![context as i32 - 1; rows])?),
            batch_idx: kept.keep(memory, memory.of(&(0..rows as i32).collect::<Vec<_>>())?),
            out: out.at(memory),
            partial_out: kept.keep(memory, memory.zeros(plan.partial_out * 4)?),
            partial_sums: kept.keep(memory, memory.zeros(plan.partial_sums * 4)?),
            tile_counters: kept.keep(memory, memory.zeros(plan.tile_counters * 4)?),
            ..DecodeAttentionParams::default()
        };
        Ok(Box::new(DecodeBuffers { plan, kv, params, out, _kept: kept }))
    }
}

/// Buffers of the decode rows.
struct DecodeBuffers<'a> {
    plan: &'a DecodePlan,
    kv: Paged,
    params: DecodeAttentionParams,
    out: Buffer,
    _kept: Kept,
}

impl Prepared for DecodeBuffers<'_> {
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let params = DecodeAttentionParams { kv: self.kv.view(i), ..self.params };
        let launch = launch::attention_decode(self.plan, params);
        // SAFETY: `prepare` made every buffer as the plan says; all live as long as `self`, and all
        // work is on one stream.
        unsafe { memory.device.launch(memory.stream, &launch)? };
        Ok(())
    }

    fn result(&mut self, memory: &Memory) -> Result<Vec<u32>, Box<dyn Error>> {
        memory.clear(&mut self.out)?;
        self.launch(memory, 0)?;
        memory.read_bf16(&self.out)
    }
}

/// A chunk of one prompt.
struct Prefill {
    plan: LaunchPlan,
    heads: Heads,
    run: PrefillSegment,
    tiles: Vec<[i32; 2]>,
    split: PrefillSplit,
}

impl Prefill {
    fn new(heads: Heads, rows: usize, context: usize) -> Prefill {
        let run = PrefillSegment { first_row: 0, rows, batch_idx: Some(0), context };
        let mut tiles = Vec::new();
        attention::prefill_tiles(&[run], heads.group, &mut tiles);
        let split = PrefillSplit::WHOLE;
        let plan = attention::prefill(heads, &split, tiles.len(), rows, pairs(&run));
        Prefill { plan, heads, run, tiles, split }
    }

    /// By Hopper's own kernel, where `chip` has it.
    fn wgmma(chip: &Chip, heads: Heads, rows: usize, context: usize) -> Option<Prefill> {
        let portable = Prefill::new(heads, rows, context);
        let Prefill { run, tiles, split, .. } = &portable;
        let plan = hopper::attention::prefill(chip, heads, split, tiles.len(), rows, pairs(run))?;
        Some(Prefill { plan, ..portable })
    }

    /// The same with a context that blocks share; `None` where the planner leaves it whole.
    fn cut(&self, chip: &Chip) -> Option<Prefill> {
        let Prefill { heads, run, .. } = *self;
        let (count, tiles) = (self.tiles.len(), self.tiles.clone());
        let is_own = self.is_wgmma();
        let places = match is_own {
            true => chip.multiprocessors as usize,
            false => attention::prefill_places(chip, heads.head_dim),
        };
        let split = PrefillSplit::choose(places, heads, &[run], &tiles);
        let plan = match is_own {
            true => hopper::attention::prefill(chip, heads, &split, count, run.rows, pairs(&run))?,
            false => attention::prefill(heads, &split, count, run.rows, pairs(&run)),
        };
        (split.cut_tiles > 0).then_some(Prefill { plan, heads, run, tiles, split })
    }

    fn is_wgmma(&self) -> bool {
        self.plan.kernel.starts_with("attention_wgmma")
    }
}

/// Pairs of a row and a token: each row attends to the context, the chunk's rows before it, and
/// itself.
fn pairs(run: &PrefillSegment) -> usize {
    run.rows * run.context + run.rows * (run.rows + 1) / 2
}

impl Case for Prefill {
    fn op(&self) -> &'static str {
        "attention_prefill"
    }

    fn launches(&self) -> Vec<LaunchPlan> {
        [Some(self.plan), self.split.merge(self.heads)].into_iter().flatten().collect()
    }

    fn rows(&self) -> usize {
        self.run.rows
    }

    fn context(&self) -> Option<usize> {
        Some(self.run.context)
    }

    fn prepare(&self, memory: &Memory) -> Result<Box<dyn Prepared + '_>, Box<dyn Error>> {
        let PrefillSegment { rows, context, .. } = self.run;
        let kv = Paged::new(memory, self.heads, 1, context + rows)?;
        let [out_floats, sums] = PrefillSplit::workspace(self.split.parts(self.heads), self.heads);
        let map = match self.is_wgmma() {
            true => Some(launch::pool_map(kv.layer.pool, kv.elements, self.heads.head_dim)?),
            false => None,
        };
        let mut kept = Kept::default();
        let mut out = memory.zeros(rows * self.heads.row() * 2)?;
        let params = PrefillAttentionParams {
            q: kept.keep(memory, memory.random(rows * self.heads.row())?),
            segments: kept.keep(memory, memory.of(&self.run.encode())?),
            tiles: kept.keep(memory, memory.of(&self.tiles)?),
            out: out.at(memory),
            partial_out: kept.keep(memory, memory.zeros(out_floats * 4)?),
            partial_sums: kept.keep(memory, memory.zeros(sums * 4)?),
            ..PrefillAttentionParams::default()
        };
        Ok(Box::new(PrefillBuffers { case: self, kv, map, params, out, _kept: kept }))
    }
}

/// Buffers of a chunk.
struct PrefillBuffers<'a> {
    case: &'a Prefill,
    kv: Paged,
    /// TMA descriptor of the pool (Hopper).
    map: Option<TensorMap>,
    params: PrefillAttentionParams,
    out: Buffer,
    _kept: Kept,
}

impl Prepared for PrefillBuffers<'_> {
    fn launch(&mut self, memory: &Memory, i: usize) -> Result<(), Box<dyn Error>> {
        let base = PrefillAttentionParams { kv: self.kv.view(i), ..self.params };
        let Prefill { plan, heads, split, tiles, .. } = self.case;
        let Memory { device, stream, .. } = *memory;
        // SAFETY: `prepare` made every buffer as the plan says; all live as long as `self`, and all
        // work is on one stream.
        unsafe {
            match self.map {
                Some(pool) => {
                    let tile_count = tiles.len() as i32;
                    let params = WgmmaAttentionParams { pool, base, tile_count, reserved: [0; 3] };
                    let launch = launch::attention_wgmma(plan, *heads, split, params);
                    device.launch(stream, &launch)?;
                }
                None => {
                    let launch = launch::attention_prefill(plan, *heads, split, base);
                    device.launch(stream, &launch)?;
                }
            }
            if let Some(merge) = launch::attention_merge(*heads, split, base) {
                device.launch(stream, &merge)?;
            }
        }
        Ok(())
    }

    fn result(&mut self, memory: &Memory) -> Result<Vec<u32>, Box<dyn Error>> {
        memory.clear(&mut self.out)?;
        self.launch(memory, 0)?;
        memory.read_bf16(&self.out)
    }
}

/// A pool of random keys and values with more layers than stay in L2, its blocks in random order.
struct Paged {
    /// The first layer.
    layer: PagedKv,
    layers: usize,
    /// Elements of one layer of a block, and of the pool.
    layer_stride: usize,
    elements: usize,
    _kept: Kept,
}

impl Paged {
    /// A pool for `requests` requests with `tokens` tokens each.
    fn new(
        memory: &Memory,
        heads: Heads,
        requests: usize,
        tokens: usize,
    ) -> Result<Paged, Box<dyn Error>> {
        let max_blocks = tokens.div_ceil(BLOCK_TOKENS);
        let layer_stride = 2 * heads.kv_heads * BLOCK_TOKENS * heads.head_dim;
        let blocks = requests * max_blocks;
        let layers = memory.copies(blocks * layer_stride * 2);
        let elements = blocks * layers * layer_stride;
        let mut kept = Kept::default();
        let table = memory.of(&Rng::new(1).permutation(blocks as u32))?;
        let layer = PagedKv {
            pool: kept.keep(memory, memory.random(elements)?),
            block_table: kept.keep(memory, table),
            block_stride: (layers * layer_stride) as i64,
            max_blocks: max_blocks as i32,
            ..PagedKv::default()
        };
        Ok(Paged { layer, layers, layer_stride, elements, _kept: kept })
    }

    /// The layer of launch number `i`: they rotate.
    fn view(&self, i: usize) -> PagedKv {
        PagedKv { layer_offset: (i % self.layers * self.layer_stride) as i64, ..self.layer }
    }
}
