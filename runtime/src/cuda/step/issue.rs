//! A step as a straight list of launches. Whether it runs at once or is recorded into a graph is
//! the stream's affair.

use super::Executor;
use super::fill::Shape;
use crate::cuda::error::CudaError;
use crate::cuda::error::doing;
use crate::cuda::launch::{self, EmbedBuffers, Operands, SamplerBuffers};
use crate::cuda::trace::TracePoint;
use cudarc::driver::CudaStream;

/// Which launches of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum StepPhase {
    /// All.
    Whole,
    /// Up to the tap, and its copy.
    Lower,
    /// Behind the tap.
    Upper,
}

impl Executor {
    /// Launches `phase` of a step of `shape`, whose list of differences is in the metadata.
    pub(super) fn issue(&self, shape: &Shape, phase: StepPhase) -> Result<(), CudaError> {
        let layers = self.config.num_layers;
        let (first, last) = match (phase, &self.tap) {
            (StepPhase::Lower, Some(tap)) => (0, tap.layer + 1),
            (StepPhase::Upper, Some(tap)) => (tap.layer + 1, layers),
            _ => (0, layers),
        };
        if phase != StepPhase::Upper {
            self.record_event(shape, TracePoint::Begin, self.compute.stream())?;
            self.metadata.apply(&self.compute, shape.parity)?;
            self.embed(shape)?;
        }
        let mut layers = first..last;
        if let Some(tap) = self.tap.as_ref().filter(|tap| layers.contains(&tap.layer)) {
            let upper = tap.layer + 1;
            let tap_row = if shape.staged > 0 { self.word(self.layout().tap_row) } else { 0 };
            self.layers(shape, first..upper, tap_row)?;
            self.tap(shape, tap, phase)?;
            layers.start = upper;
        }
        self.layers(shape, layers, 0)?;
        if phase != StepPhase::Lower {
            self.choose(shape)?;
            self.record_event(shape, TracePoint::End, self.compute.stream())?;
            if let (Some(tap), StepPhase::Whole) = (&self.tap, phase)
                && shape.staged > 0
            {
                // The next step must not overwrite the stage, nor its own number, before they are
                // copied.
                let joined = tap
                    .end
                    .record(tap.side.stream())
                    .and_then(|()| self.compute.stream().wait(&tap.end));
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
            batch_idx: self.word(layout.batch_idx),
            gamma: self.weights.norms[0],
            h: buffers.h.at(),
            x: buffers.x.at(),
            ss: buffers.ss.at(),
        };
        let plan = &self.plans.layer[shape.rows].embed;
        self.compute.launch(&launch::embed(plan, rows, d, &to))
    }

    /// An event at this place of the step, where steps are traced.
    pub(super) fn record_event(
        &self,
        shape: &Shape,
        point: TracePoint,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let Some(trace) = &self.trace else { return Ok(()) };
        trace.record(shape.parity, point, stream)
    }

    fn choose(&self, shape: &Shape) -> Result<(), CudaError> {
        let Some(choices) = shape.choices else {
            return self.record_event(shape, TracePoint::Logits, self.compute.stream());
        };
        let (layout, buffers, plans) = (self.layout(), &self.buffers, &self.plans.choice[choices]);
        let from = Operands {
            x: buffers.x.at(),
            w: self.weights.lm_head,
            row_list: self.word(layout.logits_row),
            partials: buffers.partials.at(),
            tile_counters: buffers.tile_counters.at(),
        };
        let to = SamplerBuffers {
            logits: buffers.logits.at(),
            stride: plans.logits.features,
            row_sampling: self.word(layout.sampling),
            token_counts: self.token_counts.at(),
            weights: buffers.weights.at(),
            sums: buffers.sums.at(),
            sampled: self.results.at(shape.parity),
            last: buffers.last.at(),
            step_seq: self.word(layout.number),
        };
        self.compute.launch(&launch::logits(&plans.logits, &from, &self.norm(), to.logits))?;
        self.record_event(shape, TracePoint::Logits, self.compute.stream())?;
        let launches = launch::sample(&plans.sampling, &to);
        launches.iter().try_for_each(|launch| self.compute.launch(launch))
    }
}
