//! The CUDA backend in whole steps, and the engine on it, on whatever driver there is. Apart from
//! the kernels' tests, which count what is still allocated: after steps of a backend the driver's
//! frees of their last buffers may come later.

mod backend;
mod engine;
mod memory;
mod swap;
mod weights;

trail_cuda_emulator::on_emulator!();
