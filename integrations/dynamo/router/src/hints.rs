//! The predicted length of a request, from its prompt, before a worker is chosen.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use serde_json::Value;
use trail_probe::{LengthPredictor, Prompt};
use trail_runtime::text::{ChatMessage, ChatOptions, Tokenizer};
use trail_setup::{ModelArgs, Setup};

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

    /// The predicted length of the answer to `body`, tokens; `None` without a prompt that can be
    /// read.
    pub fn predict(&self, body: &Value) -> Option<u32> {
        let tokens = self.prompt(body)?;
        let most = body.get("max_tokens").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
        let predicted = self.predictor.predict(&Prompt::new(&tokens))?.mean();
        Some(f64::from(predicted).min(most).max(1.0).round() as u32)
    }

    /// The tokens of a prompt or of a conversation.
    fn prompt(&self, body: &Value) -> Option<Vec<u32>> {
        if let Some(messages) = body.get("messages") {
            let turns: Option<Vec<ChatMessage>> = messages.as_array()?.iter().map(turn).collect();
            let options = ChatOptions::default();
            return self.setup.template.encode(&self.tokenizer, &turns?, options).ok();
        }
        match body.get("prompt")? {
            Value::String(text) => self.tokenizer.encode(text, true).ok(),
            tokens => serde_json::from_value(tokens.clone()).ok(),
        }
    }
}

fn turn(message: &Value) -> Option<ChatMessage> {
    let text = |name| message.get(name)?.as_str().map(str::to_owned);
    Some(ChatMessage {
        role: text("role")?,
        content: text("content")?,
        name: text("name"),
        tool_call_id: text("tool_call_id"),
    })
}
