//! The emulator against the language's definition: what kernels compute, what streams and graphs
//! order, and every planted bug that it must find.

mod arithmetic;
mod clusters;
mod common;
mod detectors;
mod faults;
mod graphs;
mod half_sums;
mod hopper;
mod overlaps;
mod refusals;
mod semantics;
mod streams;
mod vectors;

trail_cuda_emulator::on_emulator!();
