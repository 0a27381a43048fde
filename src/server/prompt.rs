//! Tokenization of prompts, outside the threads that serve connections.

use std::sync::Arc;

use serde::Deserialize;
use trail_runtime::text::EncodeError;

use super::error::ApiError;
use super::state::ServerState;

/// The prompts of a completion.
#[derive(Deserialize, Clone, Debug)]
#[serde(
    untagged,
    expecting = "expected a string, an array of strings, an array of token ids, or an array of such arrays"
)]
pub enum Prompt {
    /// One prompt as text.
    Text(String),
    /// Several prompts as text.
    Texts(Vec<String>),
    /// One prompt as token ids.
    Ids(Vec<u32>),
    /// Several prompts as token ids.
    IdLists(Vec<Vec<u32>>),
}

impl Prompt {
    /// Returns the token ids of each prompt.
    pub async fn encode(self, state: Arc<ServerState>) -> Result<Vec<Vec<u32>>, ApiError> {
        let texts = match self {
            Prompt::Ids(ids) => return Ok(vec![ids]),
            Prompt::IdLists(lists) => return Ok(lists),
            Prompt::Text(text) => vec![text],
            Prompt::Texts(texts) => texts,
        };
        let encode = move || -> Result<Vec<Vec<u32>>, EncodeError> {
            texts.iter().map(|text| state.tokenizer.encode(text, true)).collect()
        };
        let encoded = off_thread(encode).await?;
        encoded.map_err(|error| ApiError::invalid_field("prompt", error.to_string()))
    }
}

/// Runs long work, such as encoding a megabyte of text, on the blocking thread pool.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    // Joining fails only if the work panicked, which the panic hook has reported.
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::interrupted())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Prompt, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn four_spellings() {
        assert!(matches!(parse(r#""a""#), Ok(Prompt::Text(_))));
        assert!(matches!(parse(r#"["a", "b"]"#), Ok(Prompt::Texts(_))));
        assert!(matches!(parse("[1, 2]"), Ok(Prompt::Ids(_))));
        assert!(matches!(parse("[[1], [2]]"), Ok(Prompt::IdLists(_))));
        let error = parse(r#"[1, "a"]"#).expect_err("refused");
        assert!(error.contains("an array of token ids"), "{error}");
    }
}
