//! GGUF, ggml's file format (versions 2 and 3): metadata, then tensor infos, then tensor data.
//!
//! The file is mapped and untrusted: every count, length, offset and dimension is checked against
//! the bytes that are there before anything is allocated.

mod file;
mod metadata;
mod reader;

pub use file::{GgufFile, TensorInfo};
pub use metadata::{Array, Metadata, Value};
