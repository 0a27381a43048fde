//! The predicted length of a request, from its prompt, before a worker is chosen.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use trail_cli::{ModelArgs, Setup};
use trail_probe::{LengthPredictor, Prompt};
use trail_runtime::text::{ChatMessage, ChatOptions, Tokenizer};

use crate::members::{Members, get};

/// The prompt-only predictor of the workers' model, and what turns text into its tokens.
pub struct Hints {
    setup: Setup,
    tokenizer: Arc<Tokenizer>,
    predictor: Arc<dyn LengthPredictor>,
}

impl Hints {
    /// The predictor of the model at `path`.
    pub fn load(path: &Path) -> anyhow::Result<Hints> {
        let setup = Setup::load(&ModelArgs::default().with_model(Some(path)))?;
        let (tokenizer, predictor) = (setup.tokenizer()?, setup.predictor()?);
        let predictor = predictor.with_context(|| {
            format!("there is no predictor.safetensors beside {}: train one", path.display())
        })?;
        Ok(Hints { setup, tokenizer, predictor })
    }

    /// The predicted length of an answer of at most `max_tokens` tokens to the body with `members`;
    /// `None` without a prompt that can be read and fits the model's context.
    pub fn predict(&self, members: &Members, max_tokens: Option<u32>) -> Option<u32> {
        let tokens = self.prompt(members).filter(|tokens| tokens.len() <= self.context())?;
        let max = max_tokens.map_or(f32::INFINITY, |max| max as f32);
        let predicted = self.predictor.predict(&Prompt::new(&tokens))?.mean();
        Some(predicted.min(max).max(1.0).round() as u32)
    }

    /// The tokens of a prompt or of a conversation.
    fn prompt(&self, members: &Members) -> Option<Vec<u32>> {
        if members.contains_key("messages") {
            let turns: Vec<ChatMessage> = get(members, "messages")?;
            let contents = turns.iter().filter_map(|turn| turn.content.as_deref());
            let least: usize = contents.map(|content| self.least_tokens(content)).sum();
            let encode =
                || self.setup.template.encode(&self.tokenizer, &turns, ChatOptions::default());
            return (least <= self.context()).then(encode)?.ok();
        }
        match get::<String>(members, "prompt") {
            Some(text) if self.least_tokens(&text) > self.context() => None,
            Some(text) => self.tokenizer.encode(&text, true).ok(),
            None => get(members, "prompt"),
        }
    }

    /// Most tokens of prompt and output.
    fn context(&self) -> usize {
        self.setup.model.config.max_context
    }

    /// Tokens that `text` has at least: it takes a hundred times longer to count them.
    fn least_tokens(&self, text: &str) -> usize {
        self.tokenizer.least_tokens(text)
    }
}
