//! The ring of the CUDA tap: the engine's thread announces steps, the device writes their rows, a
//! thread copies them out.

#[path = "../../../../runtime/src/cuda/tap/slots.rs"]
#[cfg_attr(any(not(test), miri), allow(dead_code, reason = "its models are tests"))]
mod slots;

#[cfg(all(test, loom))]
mod models;
