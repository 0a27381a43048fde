//! The CUDA kernels, each against its reference, on whatever driver there is: the emulator's, or a
//! GPU's with `TRAIL_TEST_DRIVER=real`. Tests take turns by `trail_cuda_emulator::session()`, which
//! restores the emulator.

mod attention;
mod ceiling;
mod gemm;
mod sampling;
mod step;

trail_cuda_emulator::on_emulator!();
