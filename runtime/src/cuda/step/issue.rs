//! A step as a straight list of launches. Whether it runs at once or is recorded into a graph is the stream's affair.

use super::Executor;
use super::fill::Shape;
use crate::batch::BLOCK_TOKENS;
use crate::cuda::CudaError;
use crate::cuda::launch::{
    self, DecodeRows, EmbedBuffers, KvView, Norm, Operands, PrefillRows, QkvOutput, ResidualOutput,
    SamplerBuffers,
};
use crate::cuda::plan::attention;
use crate::cuda::plan::gemm::GemmPlan;
use crate::cuda::plan::step;
use crate::cuda::trace::Mark;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;

use crate::cuda::error::doing;

/// Which launches of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Part {
    /// All.
    Whole,
    /// Up to the tap, and its copy.
    Lower,
    /// Behind the tap.
    Upper,
}

/// The operands of the two kinds of products.
enum From {
    X,
    Attended,
    Inner,
}

impl Executor {
    /// Launches `part` of a step of `shape`, whose list of differences is in the mirror.
    pub(super) fn issue(&self, shape: &Shape, part: Part) -> Result<(), CudaError> {
        let layers = self.config.num_layers;
        let (first, last) = match (part, &self.tap) {
            (Part::Lower, Some(tap)) => (0, tap.layer + 1),
            (Part::Upper, Some(tap)) => (tap.layer + 1, layers),
            _ => (0, layers),
        };
        if part != Part::Upper {
            self.mark(shape, Mark::Begin, &self.compute)?;
            self.mirror.apply(&self.device, &self.compute, shape.parity)?;
            self.embed(shape)?;
        }
        for layer in first..last {
            self.qkv(shape, layer)?;
            self.attend(shape, layer)?;
            // A sum over devices that share a layer goes behind this product, and behind the one below.
            self.residual(shape, layer, From::Attended, 0)?;
            self.swiglu(shape, layer)?;
            let tap = self.tap.as_ref().filter(|tap| tap.layer == layer && shape.staged > 0);
            self.residual(
                shape,
                layer,
                From::Inner,
                tap.map_or(0, |_| self.word(self.layout().tap_row)),
            )?;
            if let Some(tap) = self.tap.as_ref().filter(|tap| tap.layer == layer) {
                self.tap(shape, tap, part)?;
            }
        }
        if part != Part::Lower {
            self.choose(shape)?;
            self.mark(shape, Mark::End, &self.compute)?;
            if let (Some(tap), Part::Whole) = (&self.tap, part)
                && shape.staged > 0
            {
                // The next step must not overwrite the stage, nor its own number, before they are copied.
                let joined = tap.end.record(&tap.side).and_then(|()| self.compute.wait(&tap.end));
                joined.map_err(doing("joining the tap's stream"))?;
            }
        }
        Ok(())
    }

    fn embed(&self, shape: &Shape) -> Result<(), CudaError> {
        let (layout, buffers, d) = (self.layout(), &self.buffers, self.config.hidden_size);
        let rows = self.plans.rows.at(shape.rows);
        let to = EmbedBuffers {
            table: self.weights.embed,
            token: self.word(layout.token),
            last: buffers.last.at(),
            slot: self.word(layout.seat),
            gamma: self.weights.norms[0],
            h: buffers.h.at(),
            x: buffers.x.at(),
            ss: buffers.ss.at(),
        };
        let plan = &self.plans.layer[shape.rows].embed;
        // SAFETY: every buffer is as large as the largest step needs, and lives until the streams were waited for: `Executor` does so when
        // dropped. Indices in the mirror are within what the layout and the limits say. So it is below.
        unsafe { launch::embed(&self.device, &self.compute, plan, rows, d, &to) }
    }

    fn qkv(&self, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let (layout, kv, heads) = (self.layout(), self.kv(layer), self.plans.heads);
        let plan = &self.plans.layer[shape.rows].qkv;
        let from = self.operands(self.weights.layers[layer].qkv, &From::X, 0);
        let to = QkvOutput {
            q: self.buffers.q.at(),
            kv_pool: kv.pool,
            position: self.word(layout.position),
            slot: self.word(layout.seat),
            block_table: kv.block_table,
            turns: self.buffers.turns.at(),
            block_stride: kv.block_stride,
            layer_offset: kv.layer_offset,
            max_blocks: kv.max_blocks,
            heads: heads.kv_heads * heads.group,
            kv_heads: heads.kv_heads,
            head_dim: heads.head_dim,
        };
        let (device, stream, norm) = (&self.device, &self.compute, self.norm());
        // SAFETY: as in `embed`; the map is of the operand.
        unsafe {
            match self.map(plan, &From::X) {
                Some(map) => launch::group_qkv(device, stream, plan, map, &from, &norm, &to),
                None => launch::qkv(device, stream, plan, &from, &norm, &to),
            }
        }
    }

    fn attend(&self, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let (layout, kv, heads) = (self.layout(), self.kv(layer), self.plans.heads);
        let (buffers, device, stream) = (&self.buffers, &self.device, &self.compute);
        let (q, out) = (buffers.q.at(), buffers.attended.at());
        if let Some(alone) = shape.alone {
            let rows = DecodeRows {
                q,
                position: self.word(layout.position),
                slot: self.word(layout.seat),
                out,
                partial_out: buffers.partial_out.at(),
                partial_sums: buffers.partial_sums.at(),
                arrivals: buffers.attention_arrivals.at(),
            };
            // SAFETY: as in `embed`.
            unsafe {
                launch::attention_decode(device, stream, &self.plans.decode[alone], &kv, &rows)?;
            }
        }
        if shape.tiles > 0 {
            let (runs, tiles) = (self.word(layout.runs), self.word(layout.tiles));
            let plan =
                attention::prefill(heads, shape.tiles, shape.prompt_rows, shape.prompt_pairs);
            let rows = PrefillRows { q, runs, tiles, out };
            // SAFETY: as in `embed`.
            unsafe { launch::attention_prefill(device, stream, &plan, heads, &kv, &rows)? };
        }
        Ok(())
    }

    /// Adds O's product, or the MLP's, to the residual stream; `tap_row` says which rows are staged, 0: none.
    fn residual(
        &self,
        shape: &Shape,
        layer: usize,
        from: From,
        tap_row: CUdeviceptr,
    ) -> Result<(), CudaError> {
        let (plans, weights) = (&self.plans.layer[shape.rows], &self.weights.layers[layer]);
        let (plan, w, norm) = match from {
            From::Attended => (&plans.o, weights.o, 2 * layer + 1),
            _ => (&plans.down, weights.down, 2 * layer + 2),
        };
        let operands = self.operands(w, &from, 0);
        let to = ResidualOutput {
            h: self.buffers.h.at(),
            gamma: self.weights.norms[norm],
            x_next: self.buffers.x.at(),
            ss: self.buffers.ss.at(),
            tap_row,
            tap: self.tap.as_ref().map_or(0, |tap| tap.stage.at()),
        };
        let (device, stream) = (&self.device, &self.compute);
        // SAFETY: as in `qkv`.
        unsafe {
            match self.map(plan, &from) {
                Some(map) => launch::group_residual(device, stream, plan, map, &operands, &to),
                None => launch::residual(device, stream, plan, &operands, &to),
            }
        }
    }

    fn swiglu(&self, shape: &Shape, layer: usize) -> Result<(), CudaError> {
        let plan = &self.plans.layer[shape.rows].gate_up;
        let from = self.operands(self.weights.layers[layer].gate_up, &From::X, 0);
        let (device, stream) = (&self.device, &self.compute);
        let (norm, out) = (self.norm(), self.buffers.inner.at());
        // SAFETY: as in `qkv`.
        unsafe {
            match self.map(plan, &From::X) {
                Some(map) => launch::group_swiglu(device, stream, plan, map, &from, &norm, out),
                None => launch::swiglu(device, stream, plan, &from, &norm, out),
            }
        }
    }

    /// An event at this place of the step, where steps are traced.
    pub(super) fn mark(
        &self,
        shape: &Shape,
        mark: Mark,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let Some(trace) = &self.trace else { return Ok(()) };
        trace.record(shape.parity, mark, stream)
    }

    fn choose(&self, shape: &Shape) -> Result<(), CudaError> {
        let Some(choices) = shape.choices else {
            return self.mark(shape, Mark::Logits, &self.compute);
        };
        let (layout, buffers, plans) = (self.layout(), &self.buffers, &self.plans.choice[choices]);
        let from = self.operands(self.weights.lm_head, &From::X, self.word(layout.logits_row));
        let to = SamplerBuffers {
            logits: buffers.logits.at(),
            stride: plans.logits.features,
            row_sampling: self.word(layout.how),
            marks: self.marks.at(),
            weights: buffers.weights.at(),
            sums: buffers.sums.at(),
            sampled: self.results.at(shape.parity),
            last: buffers.last.at(),
            stamp: self.word(layout.number),
        };
        let (device, stream, norm) = (&self.device, &self.compute, self.norm());
        // SAFETY: as in `embed`.
        unsafe {
            launch::logits(device, stream, &plans.logits, &from, &norm, to.logits)?;
        }
        self.mark(shape, Mark::Logits, stream)?;
        // SAFETY: as in `embed`.
        unsafe { launch::sample(device, stream, &plans.sampling, &to) }
    }

    /// The layer's part of the pool.
    fn kv(&self, layer: usize) -> KvView {
        let layer_stride = 2 * self.config.kv_size() * BLOCK_TOKENS;
        KvView {
            pool: self.kv.at(),
            block_table: self.word(self.layout().table),
            block_stride: self.config.num_layers * layer_stride,
            layer_offset: layer * layer_stride,
            max_blocks: self.layout().max_blocks,
            window: self.config.windows[layer],
        }
    }

    fn norm(&self) -> Norm {
        let width = self.config.hidden_size;
        let eps = self.config.rms_norm_eps;
        Norm { ss: self.buffers.ss.at(), parts: step::parts(width), width, eps }
    }

    fn operands(&self, w: CUdeviceptr, from: &From, row_list: CUdeviceptr) -> Operands {
        let buffers = &self.buffers;
        let x = match from {
            From::X => &buffers.x,
            From::Attended => &buffers.attended,
            From::Inner => &buffers.inner,
        };
        let (partials, arrivals) = (buffers.partials.at(), buffers.arrivals.at());
        Operands { x: x.at(), w, row_list, partials, arrivals }
    }

    /// How Hopper's product reads its operand; `None` for the others.
    fn map(&self, plan: &GemmPlan, from: &From) -> Option<&launch::ActivationMap> {
        let maps = self.buffers.maps.as_ref().filter(|_| super::plans::is_grouped(plan))?;
        Some(match from {
            From::X => &maps.x,
            From::Attended => &maps.attended,
            From::Inner => &maps.inner,
        })
    }

    pub(super) fn word(&self, index: usize) -> CUdeviceptr {
        self.mirror.at(index)
    }
}
