//! The CUDA side on whatever driver there is: the emulator's, or a GPU's with
//! `TRAIL_TEST_DRIVER=real`. One program, as each would link the emulator's harness and the runtime
//! again; tests take turns by `trail_cuda_emulator::session()`, which restores the emulator.

mod attention;
mod backend;
mod ceiling;
mod engine;
mod gemm;
mod memory;
mod sampling;
mod step;
mod swap;
mod weights;

trail_cuda_emulator::on_emulator!();
