//! A CUDA backend that reports its late steps to the benchmark.

use std::sync::{Arc, Mutex};

use trail_runtime::backend::{Backend, Fault, Sampled, Step, Transfers};
use trail_runtime::cuda::CudaBackend;

/// Steps whose tapped rows were overwritten before they were predicted from.
pub type LateSteps = Arc<Mutex<u64>>;

/// A CUDA backend that publishes its count of late steps after each step.
pub struct CountsLate {
    /// The wrapped backend.
    pub inner: CudaBackend,
    /// The count that the benchmark reads.
    pub late: LateSteps,
}

impl Backend for CountsLate {
    fn ahead(&self) -> usize {
        self.inner.ahead()
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        self.inner.launch(step)
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.inner.collect(sampled)?;
        if let Ok(mut late) = self.late.lock() {
            *late = self.inner.late_steps();
        }
        Ok(())
    }

    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        self.inner.transfers()
    }
}
