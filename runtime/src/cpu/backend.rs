//! The CPU backend: forward pass, sampler and tap. A step is complete when it is launched.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::draft::CpuDraft;
use super::{CpuForward, Pool, Samplers, Tap};
use crate::backend::{Backend, DraftModel, Fault, HiddenSink, Sampled, Scored, Step};
use trail_probe::TapLayers;

/// Threads of several backends.
pub type SharedPool = Arc<Mutex<Pool>>;

/// Runs steps of one model on the CPU.
pub struct CpuBackend {
    pub(super) forward: CpuForward,
    samplers: Samplers,
    pub(super) draft: Option<CpuDraft>,
    /// The threads, if other backends compute on them too.
    shared: Option<SharedPool>,
    tap: Option<(TapLayers, Arc<dyn HiddenSink>)>,
    /// Tokens of the last step.
    sampled: Vec<Sampled>,
    /// Scored tokens of the last step.
    scored: Vec<Scored>,
    computed: Instant,
}

impl CpuBackend {
    /// A backend over `forward`. `tap`: the tapped layers and the receiver of their activations.
    pub fn new(forward: CpuForward, tap: Option<(TapLayers, Arc<dyn HiddenSink>)>) -> Self {
        let samplers = Samplers::new(&forward);
        let sampled = Vec::with_capacity(forward.options().max_sampled());
        let scored = Vec::with_capacity(forward.options().max_rows);
        let computed = Instant::now();
        CpuBackend { forward, samplers, draft: None, shared: None, tap, sampled, scored, computed }
    }

    /// The same with a draft model: `draft` was made [beside](CpuForward::beside) this backend's
    /// forward pass, with as many blocks.
    pub fn with_draft(self, draft: CpuForward) -> Self {
        let draft = Some(CpuDraft::new(draft));
        let mut backend = CpuBackend { draft, ..self };
        backend.measure_draft();
        backend
    }

    /// The same on the threads of `pool`, on which the forward pass [was made](CpuForward::on): each
    /// step takes all, and waits for that of another backend.
    pub fn with_shared(self, pool: SharedPool) -> Self {
        CpuBackend { shared: Some(pool), ..self }
    }

    /// Computes `step` and samples its tokens.
    fn compute(&mut self, step: &Step<'_>) {
        match (&self.tap, step.tap) {
            (Some((layers, receiver)), Some(plan)) => {
                let receiver = &**receiver;
                let mut taps =
                    [Tap { layer: 0, at: 0, step: step.number, plan, receiver }; TapLayers::MAX];
                for (at, layer) in layers.iter().enumerate() {
                    (taps[at].layer, taps[at].at) = (layer, at);
                }
                self.forward.forward(step.batch, &taps[..layers.count()]);
            }
            _ => {
                self.forward.forward(step.batch, &[]);
            }
        }
        self.computed = Instant::now();
        let CpuBackend { forward, samplers, sampled, scored, .. } = self;
        sampled.clear();
        samplers.sample(forward, step.batch, step.sampling, sampled);
        scored.clear();
        samplers.score(forward, step.batch, step.sampling, scored);
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

    fn scores(&self) -> Option<&[Scored]> {
        Some(&self.scored)
    }

    fn takes_drafts(&self) -> bool {
        true
    }

    fn takes_masks(&self) -> bool {
        true
    }

    fn takes_bias(&self) -> bool {
        true
    }

    fn takes_adapters(&self) -> bool {
        self.forward.model().config.delta_net.is_none()
    }

    fn num_states(&self) -> usize {
        self.forward.num_states()
    }

    fn draft_model(&mut self) -> Option<&mut dyn DraftModel> {
        match self.draft {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        let Some(shared) = self.shared.clone() else {
            self.compute(step);
            return Ok(());
        };
        // After a panic of the other backend it has the threads that are left.
        let mut pool = shared.lock().unwrap_or_else(PoisonError::into_inner);
        self.forward.exchange_threads(&mut pool);
        self.compute(step);
        self.forward.exchange_threads(&mut pool);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        sampled.append(&mut self.sampled);
        Ok(())
    }
}
