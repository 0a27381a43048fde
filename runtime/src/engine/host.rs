//! The CPU as a backend: a step is done when it is launched.

use std::sync::Arc;

use super::backend::{Backend, Fault, Step};
use super::forecast::Forecast;
use super::sampling::{History, Sampled, Sampler};
use crate::cpu::{CpuBackend, Tap};

/// The CPU's forward pass, the sampler, and the probe beside them.
pub(super) struct Host {
    backend: CpuBackend,
    sampler: Sampler,
    forecast: Option<Arc<Forecast>>,
    /// What the last step chose.
    sampled: Vec<Sampled>,
}

impl Host {
    pub(super) fn new(backend: CpuBackend, forecast: Option<Arc<Forecast>>) -> Self {
        let sampler = Sampler::new(backend.model().config.vocab_size);
        let sampled = Vec::with_capacity(backend.options().max_segments);
        Host { backend, sampler, forecast, sampled }
    }

    /// For tests that move its KV.
    #[cfg(test)]
    pub(super) fn backend_mut(&mut self) -> &mut CpuBackend {
        &mut self.backend
    }
}

impl Backend for Host {
    fn ahead(&self) -> usize {
        0
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        let host_tap = match (&self.forecast, step.tap) {
            (Some(forecast), Some(plan)) => {
                Some((forecast.layer(), forecast.tap(step.number, plan)))
            }
            _ => None,
        };
        let tap = host_tap.as_ref().map(|(layer, sink)| Tap { layer: *layer, sink });
        self.backend.forward(step.batch, tap);
        let vocab = self.backend.model().config.vocab_size;
        let segments = step.batch.segments.iter().filter(|segment| segment.logits);
        self.sampled.clear();
        for (segment, logits) in segments.zip(self.backend.logits_mut().chunks_exact_mut(vocab)) {
            let choice = step.choices.choice(segment.slot);
            let history = History { prompt: choice.prompt, generated: choice.generated };
            self.sampled.push(self.sampler.sample(
                logits,
                choice.sampling,
                history,
                choice.position,
            ));
        }
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        sampled.append(&mut self.sampled);
        Ok(())
    }
}
