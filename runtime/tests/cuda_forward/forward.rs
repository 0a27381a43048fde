//! A step on the device, every kernel of it by the planner's plan.

use crate::cuda::{Address, Bench, Buffer, Output};
use crate::steps::{Pages, Rows, Step};
use crate::weights::{Gemm, Weights};
use cudarc::driver::sys::CUdeviceptr;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cuda::launch::{
    self, DecodeRows, EmbedBuffers, KvView, Norm, Operands, PrefillRows, QkvOutput, ResidualOutput,
    RowPlace, SamplerBuffers, row_sampling, row_sampling_bytes,
};
use trail_runtime::cuda::params::RowSampled;
use trail_runtime::cuda::plan::attention::{self, Heads};
use trail_runtime::cuda::plan::gemm::End;
use trail_runtime::cuda::plan::{sampling, step as small};
use trail_runtime::engine::SamplingParams;
use trail_runtime::model::{Model, ModelConfig};

/// What a step computed, to the bit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Computed {
    /// The residual stream `[T, d]` f32: of the embedding, then after each layer.
    pub(crate) h: Vec<Vec<u32>>,
    /// Stage rows of the tap `[stage rows, d]` bf16.
    pub(crate) stage: Vec<u16>,
    /// `[step.logits, vocab]` f32.
    pub(crate) logits: Vec<u32>,
    /// The greedy tokens `[step.logits]`.
    pub(crate) token: Vec<i32>,
}

/// The model on the device, and a pool that nobody has written.
pub(crate) struct Forward<'a> {
    bench: &'a Bench,
    config: &'a ModelConfig,
    weights: Weights,
    turns: Buffer,
    pool: Output,
    pages: Pages,
    table: Buffer,
    /// The layer after which rows are tapped.
    tapped: usize,
}

impl<'a> Forward<'a> {
    pub(crate) fn new(bench: &'a Bench, model: &'a Model, pages: Pages, tapped: usize) -> Self {
        let config = &model.config;
        let stride = config.num_layers * 2 * config.kv_size() * BLOCK_TOKENS;
        Forward {
            bench,
            config,
            weights: Weights::new(bench, model),
            turns: bench.input(&launch::turns(&config.inverse_frequencies())),
            pool: bench.output(pages.blocks * stride * 2),
            table: bench.input(&pages.table),
            pages,
            tapped,
        }
    }

    /// The whole pool, bf16.
    pub(crate) fn pool(&self) -> Vec<u16> {
        self.bench.read(&self.pool)
    }

    fn heads(&self) -> Heads {
        let ModelConfig { num_heads, num_kv_heads, head_dim, .. } = *self.config;
        Heads { kv_heads: num_kv_heads, group: num_heads / num_kv_heads, head_dim }
    }

    fn kv(&mut self, layer: usize) -> KvView {
        let layer_stride = 2 * self.config.kv_size() * BLOCK_TOKENS;
        KvView {
            pool: self.pool.at(self.bench),
            block_table: self.table.at(self.bench),
            block_stride: self.config.num_layers * layer_stride,
            layer_offset: layer * layer_stride,
            max_blocks: self.pages.max_blocks,
            window: self.config.windows[layer],
        }
    }

    /// Where the rows' scales come from: what embedding or a residual product left.
    fn norm(&self, rows: &mut Rows) -> Norm {
        let d = self.config.hidden_size;
        let eps = self.config.rms_norm_eps;
        Norm { ss: rows.ss.at(self.bench), parts: small::parts(d), width: d, eps }
    }

    /// One step; the pool keeps its keys and values.
    pub(crate) fn step(&mut self, step: &Step) -> Computed {
        let (bench, config) = (self.bench, self.config);
        let (count, d, q) = (step.rows.len(), config.hidden_size, config.q_size());
        let product = |end, features, width| Gemm::new(bench, end, count, features, width);
        let mut qkv = product(End::Qkv, q + 2 * config.kv_size(), d);
        let mut o = product(End::Residual, d, q);
        let mut gate_up = product(End::Swiglu, 2 * config.intermediate_size, d);
        let mut down = product(End::Residual, d, config.intermediate_size);
        let mut rows = Rows::new(bench, config, step);
        self.embed(step, &mut rows);
        let mut h = vec![bench.read(&rows.h)];
        for layer in 0..config.num_layers {
            self.qkv(layer, &mut qkv, &mut rows);
            self.attention(layer, step, &mut rows);
            let from =
                o.operands(bench, rows.attended.at(bench), &mut self.weights.layers[layer].o);
            self.residual(&o, &from, 2 * layer + 1, false, &mut rows);
            let w = &mut self.weights.layers[layer].gate_up;
            let from = gate_up.operands(bench, rows.x.at(bench), w);
            let (norm, to) = (self.norm(&mut rows), rows.inner.at(bench));
            // SAFETY: all buffers are as large as the plan says, and live until this step's last read has waited for the stream. So it is below.
            unsafe {
                launch::swiglu(&bench.device, &bench.stream, &gate_up.plan, &from, &norm, to)
            }
            .unwrap();
            let w = &mut self.weights.layers[layer].down;
            let from = down.operands(bench, rows.inner.at(bench), w);
            self.residual(&down, &from, 2 * layer + 2, layer == self.tapped, &mut rows);
            h.push(bench.read(&rows.h));
        }
        let (logits, token) = self.choose(step, &mut rows);
        // Reading checks the guards.
        for output in [&rows.x, &rows.ss, &rows.q, &rows.attended, &rows.inner] {
            bench.read::<u8>(output);
        }
        Computed { h, stage: bench.read(&rows.stage), logits, token }
    }

    fn embed(&mut self, step: &Step, rows: &mut Rows) {
        let (bench, d) = (self.bench, self.config.hidden_size);
        let mut token = bench.input(&step.token);
        let buffers = EmbedBuffers {
            table: self.weights.embed.at(bench),
            token: token.at(bench),
            last: 0,
            slot: rows.slot.at(bench),
            gamma: self.weights.norms[0].at(bench),
            h: rows.h.at(bench),
            x: rows.x.at(bench),
            ss: rows.ss.at(bench),
        };
        let count = step.rows.len();
        let plan = small::embed(count, d);
        // SAFETY: as in `step`; the tokens are freed in stream order.
        unsafe { launch::embed(&bench.device, &bench.stream, &plan, count, d, &buffers) }.unwrap();
    }

    fn qkv(&mut self, layer: usize, product: &mut Gemm, rows: &mut Rows) {
        let (bench, kv, heads) = (self.bench, self.kv(layer), self.heads());
        let from = product.operands(bench, rows.x.at(bench), &mut self.weights.layers[layer].qkv);
        let norm = self.norm(rows);
        let to = QkvOutput {
            q: rows.q.at(bench),
            kv_pool: kv.pool,
            position: rows.position.at(bench),
            slot: rows.slot.at(bench),
            block_table: kv.block_table,
            turns: self.turns.at(bench),
            block_stride: kv.block_stride,
            layer_offset: kv.layer_offset,
            max_blocks: kv.max_blocks,
            heads: heads.kv_heads * heads.group,
            kv_heads: heads.kv_heads,
            head_dim: heads.head_dim,
        };
        // SAFETY: as in `step`.
        unsafe { launch::qkv(&bench.device, &bench.stream, &product.plan, &from, &norm, &to) }
            .unwrap();
    }

    fn attention(&mut self, layer: usize, step: &Step, rows: &mut Rows) {
        let (bench, heads, kv) = (self.bench, self.heads(), self.kv(layer));
        let (device, stream) = (&bench.device, &bench.stream);
        let (q, out) = (rows.q.at(bench), rows.attended.at(bench));
        if step.alone > 0 {
            let context = self.pages.max_blocks * BLOCK_TOKENS;
            let plan = attention::decode(device.chip(), step.alone, heads, context);
            let mut partial_out = bench.raw(plan.partial_out * 4);
            let mut partial_sums = bench.raw(plan.partial_sums * 4);
            let mut arrivals = bench.input(&vec![0u32; plan.arrivals]);
            let alone = DecodeRows {
                q,
                position: rows.position.at(bench),
                slot: rows.slot.at(bench),
                out,
                partial_out: partial_out.at(bench),
                partial_sums: partial_sums.at(bench),
                arrivals: arrivals.at(bench),
            };
            // SAFETY: as in `step`; the workspaces are freed in stream order.
            unsafe { launch::attention_decode(device, stream, &plan, &kv, &alone) }.unwrap();
        }
        if !step.runs.is_empty() {
            let (runs, tiles) = (rows.runs.at(bench), rows.tiles.at(bench));
            let count = step.runs.iter().map(|run| run.rows).sum();
            let pairs = step.runs.iter().map(|run| run.rows * (run.context + run.rows)).sum();
            let plan = attention::prefill(heads, rows.tile_count, count, pairs);
            let prompts = PrefillRows { q, runs, tiles, out };
            // SAFETY: as in `step`.
            unsafe { launch::attention_prefill(device, stream, &plan, heads, &kv, &prompts) }
                .unwrap();
        }
    }

    /// Adds a product to the residual stream, and prepares the operand of the one that norm `next` precedes.
    fn residual(
        &mut self,
        product: &Gemm,
        from: &Operands,
        next: usize,
        tap: bool,
        rows: &mut Rows,
    ) {
        let bench = self.bench;
        let to = ResidualOutput {
            h: rows.h.at(bench),
            gamma: self.weights.norms[next].at(bench),
            x_next: rows.x.at(bench),
            ss: rows.ss.at(bench),
            tap_row: if tap { rows.tap_row.at(bench) } else { 0 },
            tap: rows.stage.at(bench),
        };
        // SAFETY: as in `step`.
        unsafe { launch::residual(&bench.device, &bench.stream, &product.plan, from, &to) }
            .unwrap();
    }

    /// Logits, and the greedy token of each.
    fn choose(&mut self, step: &Step, rows: &mut Rows) -> (Vec<u32>, Vec<i32>) {
        let (bench, d, vocab) = (self.bench, self.config.hidden_size, self.config.vocab_size);
        let count = step.logits.len();
        let mut product = Gemm::new(bench, End::Logits, count, vocab, d);
        let stride = product.plan.features;
        let mut list = bench.input(&step.logits);
        let x: CUdeviceptr = rows.x.at(bench);
        let from = Operands {
            row_list: list.at(bench),
            ..product.operands(bench, x, &mut self.weights.lm_head)
        };
        let (norm, mut logits) = (self.norm(rows), bench.output(count * stride * 4));
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let how = |(row, &of): (usize, &i32)| {
            let position = step.position[of as usize] as u32 + 1;
            row_sampling(&greedy, RowPlace { row: Some(row), marks_row: None, seat: row, position })
        };
        let how: Vec<_> = step.logits.iter().enumerate().map(how).collect();
        let plan = sampling::sampling(count, vocab);
        let mut how = bench.input(row_sampling_bytes(&how));
        let (mut weights, mut sums) = (bench.raw(plan.weights * 4), bench.raw(5 * plan.sums * 4));
        let mut sampled = bench.output(count * size_of::<RowSampled>());
        let mut token = bench.output(count * 4);
        let mut stamp = bench.input(&[1u32]);
        let buffers = SamplerBuffers {
            logits: logits.at(bench),
            stride,
            row_sampling: how.at(bench),
            marks: 0,
            weights: weights.at(bench),
            sums: sums.at(bench),
            sampled: sampled.at(bench),
            last: token.at(bench),
            stamp: stamp.at(bench),
        };
        let (device, stream) = (&bench.device, &bench.stream);
        // SAFETY: as in `step`.
        unsafe {
            launch::logits(device, stream, &product.plan, &from, &norm, buffers.logits).unwrap();
            launch::sample(device, stream, &plan, &buffers).unwrap();
        }
        assert_eq!(stride, vocab, "the demo's vocabulary needs no padding");
        (bench.read(&logits), bench.read(&token))
    }
}
