//! A shard: some answers of a model, and activations of some of their positions with the number of
//! tokens that remained.
//!
//! A safetensors file, written whole and then renamed: a shard that is there is complete. Tensors,
//! for `q` requests and `n` rows:
//!
//! | name | dtype, shape | content |
//! |---|---|---|
//! | `request.index` | U32 `[q]` | line of the prompt in its file, from 0 |
//! | `request.stopped` | U8 `[q]` | 1: the answer ended with an end mark; 0: it was cut |
//! | `prompt.ids`, `prompt.ends` | U32 | token ids of all prompts, and where each ends `[q]` |
//! | `answer.ids`, `answer.ends` | U32 | the same of the answers, end mark included |
//! | `row.request`, `row.generated` | U32 `[n]` | request in this shard; output tokens fed so far |
//! | `rows.L` | BF16 `[n, hidden]` | residual stream after layer L |
//! | `means.L` | BF16 `[q, hidden]` | its mean over the prompt |
//!
//! Metadata: `format` = `trail-activations`, `version` = `1`, and what the writer adds.

mod read;
mod write;

use std::fmt;
use std::sync::Arc;

use trail_platform::quote::quote;

pub use read::Shard;
pub use write::Collected;

/// `format` of a shard.
const FORMAT: &str = "trail-activations";

/// The only `version`.
const VERSION: &str = "1";

/// Shared bytes of a shard: a mapped file or an owned buffer.
pub type Storage = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Line of the prompt in its file, from 0.
    pub index: u32,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids of the answer, its end mark included.
    pub tokens: Vec<u32>,
    /// True if the answer ended with an end mark, false if it was cut at its longest.
    pub stopped: bool,
}

impl Answer {
    /// Output tokens that remain when `generated` were fed.
    pub fn remaining(&self, generated: u32) -> u32 {
        self.tokens.len() as u32 - generated
    }
}

/// Position of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Request, by its place in the shard.
    pub request: u32,
    /// Output tokens fed so far, at least 1.
    pub generated: u32,
}

/// A file that is no shard, or a damaged one: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardError {
    /// Name of the file.
    pub file: String,
    /// Description of the damage.
    pub why: String,
}

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The reason may quote names of the file.
        write!(f, "{}: {}; collect it again", self.file, quote(&self.why))
    }
}

impl std::error::Error for ShardError {}

#[cfg(test)]
mod tests;
