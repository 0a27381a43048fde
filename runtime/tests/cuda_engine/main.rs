//! The engine on a CUDA device, end to end: answers are the CPU backend's, whatever is preempted, swapped, computed anew or cancelled on
//! the way, and whatever breaks, every request gets its answer or a clear end, and no wrong token.

mod answers;
#[path = "../support/cuda.rs"]
mod cuda;
mod faults;
mod subject;
#[path = "../cuda_forward/tolerance.rs"]
#[allow(dead_code, reason = "the tolerance of logits is used here")]
mod tolerance;

trail_cuda_emulator::on_emulator!();
