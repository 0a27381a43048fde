//! The CPU backend: forward pass, sampler and tap. A step is complete when it is launched.

use std::sync::Arc;
use std::time::Instant;

use super::{CpuForward, Tap};
use crate::backend::{Backend, Fault, Sampled, Step, TapReceiver};
use crate::sampling::{History, Sampler};

/// Runs steps of one model on the CPU.
pub struct CpuBackend {
    forward: CpuForward,
    sampler: Sampler,
    tap: Option<(usize, Arc<dyn TapReceiver>)>,
    /// Tokens of the last step.
    sampled: Vec<Sampled>,
    computed: Instant,
}

impl CpuBackend {
    /// A backend over `forward`. `tap`: the tapped layer (0-based) and the receiver of its
    /// activations.
    pub fn new(forward: CpuForward, tap: Option<(usize, Arc<dyn TapReceiver>)>) -> Self {
        let sampler = Sampler::new(forward.model().config.vocab_size);
        let sampled = Vec::with_capacity(forward.options().max_segments);
        CpuBackend { forward, sampler, tap, sampled, computed: Instant::now() }
    }

    /// The forward pass, with its options and KV pool.
    pub fn forward(&self) -> &CpuForward {
        &self.forward
    }

    /// The forward pass, to restore KV blocks.
    pub fn forward_mut(&mut self) -> &mut CpuForward {
        &mut self.forward
    }

    /// End of the last step's forward pass and start of its sampling, for timelines.
    pub fn computed(&self) -> Instant {
        self.computed
    }
}

impl Backend for CpuBackend {
    fn ahead(&self) -> usize {
        0
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        let tap = match (&self.tap, step.tap) {
            (Some((layer, receiver)), Some(plan)) => {
                Some(Tap { layer: *layer, step: step.number, plan, receiver: &**receiver })
            }
            _ => None,
        };
        self.forward.forward(step.batch, tap.as_slice());
        self.computed = Instant::now();
        let vocab = self.forward.model().config.vocab_size;
        let segments = step.batch.segments.iter().filter(|segment| segment.logits);
        self.sampled.clear();
        for (segment, logits) in segments.zip(self.forward.logits_mut().chunks_exact_mut(vocab)) {
            let input = step.sampling.of(segment.request);
            let history = History { prompt: input.prompt, generated: input.generated };
            let position = segment.start + segment.len;
            self.sampled.push(self.sampler.sample(logits, input.params, history, position));
        }
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        sampled.append(&mut self.sampled);
        Ok(())
    }
}
