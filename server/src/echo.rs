//! The text of a prompt before its answers.

use std::sync::Arc;

use trail_cli::TextDecoder;
use trail_runtime::text::{TextStream, Tokenizer};

/// A prompt's text, and where its tokens are in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    /// The text.
    pub text: String,
    /// Characters of the text before each token; empty where tokens are not reported.
    pub offsets: Vec<usize>,
}

impl Echo {
    /// Of the prompt of token ids `ids`, which were made of `text` if it is given. With `offsets`
    /// where tokens are reported.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        ids: &[u32],
        text: Option<String>,
        offsets: bool,
    ) -> Echo {
        let text = text.unwrap_or_else(|| tokenizer.decode(ids, false));
        let offsets = if offsets { offsets_of(tokenizer, ids, &text) } else { Vec::new() };
        Echo { text, offsets }
    }
}

/// Characters of `text` before each token. Those of tokens that were put before the text (a BOS)
/// do not count.
fn offsets_of(tokenizer: &Arc<Tokenizer>, ids: &[u32], text: &str) -> Vec<usize> {
    let tokenizer = tokenizer.clone();
    let decoder = TextDecoder { tokenizer, keep_special: true, kept: Vec::new() };
    let (mut stream, mut decoded) = (TextStream::new(decoder), 0);
    let mut offsets = Vec::with_capacity(ids.len());
    for &id in ids {
        offsets.push(decoded);
        decoded += stream.push(id).chars().count();
    }
    decoded += stream.flush().chars().count();
    let added = decoded.saturating_sub(text.chars().count());
    offsets.iter_mut().for_each(|offset| *offset = offset.saturating_sub(added));
    offsets
}
