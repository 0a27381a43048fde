//! A step as a straight list of launches. Whether it runs at once or is recorded into a graph is the stream's affair.

use super::fill::Shape;
use super::{Executor, TapWork};
use crate::cuda::CudaError;
use crate::cuda::error::doing;
use crate::cuda::launch::{self, EmbedBuffers, Operands, SamplerBuffers};
use crate::cuda::plan::step;

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
            self.mirror.apply(&self.device, &self.compute, shape.parity)?;
            self.embed(shape)?;
        }
        let mut layers = first..last;
        if let Some(tap) = self.tap.as_ref().filter(|tap| layers.contains(&tap.layer)) {
            let upper = tap.layer + 1;
            let tap_row = if shape.staged > 0 { self.word(self.layout().tap_row) } else { 0 };
            self.layers(shape, first..upper, tap_row)?;
            self.tap(shape, tap, part)?;
            layers.start = upper;
        }
        self.layers(shape, layers, 0)?;
        if part != Part::Lower {
            self.choose(shape)?;
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

    /// The tapped rows, on their way to whoever predicts.
    fn tap(&self, shape: &Shape, tap: &TapWork, part: Part) -> Result<(), CudaError> {
        let d = self.config.hidden_size;
        if shape.means > 0 {
            let plan = step::tap_mean(shape.means, shape.mean_rows, d);
            let addresses = [
                self.buffers.h.at(),
                self.word(self.layout().means),
                tap.sums.at(),
                tap.stage.at(),
            ];
            // SAFETY: as in `embed`; each request is in one segment.
            unsafe { launch::tap_mean(&self.device, &self.compute, &plan, d, addresses)? };
        }
        if shape.staged == 0 {
            return Ok(());
        }
        let number = self.word(self.layout().number);
        if part == Part::Lower {
            return tap.carry(&self.device, &self.compute, shape, number, d);
        }
        let forked = tap.begin.record(&self.compute).and_then(|()| tap.side.wait(&tap.begin));
        forked.map_err(doing("forking the tap's stream"))?;
        tap.carry(&self.device, &tap.side, shape, number, d)
    }

    fn choose(&self, shape: &Shape) -> Result<(), CudaError> {
        let Some(choices) = shape.choices else { return Ok(()) };
        let (layout, buffers, plans) = (self.layout(), &self.buffers, &self.plans.choice[choices]);
        let from = Operands {
            x: buffers.x.at(),
            w: self.weights.lm_head,
            row_list: self.word(layout.logits_row),
            partials: buffers.partials.at(),
            arrivals: buffers.arrivals.at(),
        };
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
            launch::sample(device, stream, &plans.sampling, &to)
        }
    }
}
