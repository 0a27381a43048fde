//! GGUF, ggml's file format (versions 2 and 3): metadata, then tensor infos, then tensor data.
//!
//! The file is mapped and untrusted: every count, length, offset and dimension is checked against
//! the bytes that are there before anything is allocated.

mod config;
mod file;
mod metadata;
mod model_files;
pub(super) mod names;
mod part;
mod reader;
mod rope;

pub(crate) use config::END_TOKENS;
pub(super) use config::family_name;
pub use file::{GgufFile, TensorInfo};
pub use metadata::{Array, Metadata, Value};
pub use model_files::GgufModel;
pub(super) use part::GgufPart;
