//! A CUDA backend that reports counts of its steps to the benchmark.

use std::sync::{Arc, Mutex};

use trail_runtime::backend::{Backend, Fault, Sampled, Step, Transfers};
use trail_runtime::cuda::CudaBackend;

/// Counts of a backend so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCounts {
    /// Steps whose tapped rows were overwritten before they were predicted from.
    pub late: u64,
    /// Steps that were replayed graphs.
    pub replayed: u64,
}

/// A CUDA backend that publishes its counts after each step.
pub struct Counted {
    /// The wrapped backend.
    pub inner: CudaBackend,
    /// The counts that the benchmark reads.
    pub counts: Arc<Mutex<StepCounts>>,
}

impl Backend for Counted {
    fn ahead(&self) -> usize {
        self.inner.ahead()
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        self.inner.launch(step)
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.inner.collect(sampled)?;
        if let Ok(mut counts) = self.counts.lock() {
            *counts =
                StepCounts { late: self.inner.late_steps(), replayed: self.inner.replayed_steps() };
        }
        Ok(())
    }

    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        self.inner.transfers()
    }
}
