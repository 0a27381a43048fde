//! A loaded model: its engine, and what requests need beside it.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use trail_cli::{Error, RankingArgs, Setup};
use trail_grammar::GrammarCompiler;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::{Engine, SamplingParams};
use trail_runtime::text::{ChatTemplate, Tokenizer};

use crate::error::ApiError;
use crate::live::LiveModel;
use crate::policy_defaults::PolicyDefaults;
use crate::reasoning::ReasoningFormat;
use crate::state::version;
use crate::tool_calls::ToolFormat;

/// Bytes of a text that usually have a token or more.
const BYTES_OF_TOKEN: usize = 8;

/// Forms of a model's answers; `None` for those that its template shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Formats {
    pub tools: Option<ToolFormat>,
    pub reasoning: Option<ReasoningFormat>,
}

/// A loaded model.
pub(crate) struct ServedModel {
    /// The live answers of the engine.
    pub live: LiveModel,
    /// Model and program, as one name.
    pub fingerprint: String,
    /// Engine that runs the requests.
    pub engine: Engine,
    /// Parameters of its policies.
    pub policies: PolicyDefaults,
    /// Tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// Compiles the grammars of requests.
    pub grammars: GrammarCompiler,
    /// Chat template of the model.
    pub template: ChatTemplate,
    /// Form in which the model writes calls of tools, if it is known.
    pub tool_format: Option<ToolFormat>,
    /// Form in which the model writes its reasoning.
    pub reasoning_format: ReasoningFormat,
    /// Sampling parameters of a request that names none.
    pub sampling: SamplingParams,
    /// Tokens that a request has room for: the context, or the KV cache if that is smaller.
    pub capacity: usize,
}

impl ServedModel {
    /// The model of `setup` and `engine`, whose policies have the options `ranking`.
    pub(crate) fn new(
        setup: Setup,
        engine: Engine,
        formats: Formats,
        ranking: RankingArgs,
    ) -> Result<Self, Error> {
        let tokenizer = setup.tokenizer()?;
        setup.notice_template_limits();
        let mut probe = setup.rank_options()?;
        // A policy set later has no first prediction of a trained predictor then.
        probe.initial_share = probe.initial_share.filter(|_| engine.predictor().is_some());
        let policies = PolicyDefaults { first: engine.policy(), ranking, probe };
        Ok(ServedModel {
            live: LiveModel::start(&engine, policies)?,
            fingerprint: fingerprint(&engine),
            policies,
            sampling: setup.load_sampling_defaults()?,
            grammars: GrammarCompiler::new(tokenizer.clone(), &engine.model().config),
            tokenizer,
            tool_format: formats
                .tools
                .or_else(|| ToolFormat::of_template(&setup.template.source())),
            reasoning_format: formats
                .reasoning
                .unwrap_or_else(|| ReasoningFormat::of_template(&setup.template.source())),
            template: setup.template,
            capacity: engine.model().config.max_context.min(engine.kv_blocks() * BLOCK_TOKENS),
            engine,
        })
    }

    /// Seconds until the next request that waits is expected to be served.
    pub(crate) fn next_end_s(&self) -> f64 {
        self.live.frame().arrivals.next_end_s()
    }

    /// Returns an error if `text`, of the request's `field`, cannot fit the context whatever its
    /// tokens are: tokenizing it would be in vain, and take a hundred times its bytes.
    pub(crate) fn check_text(&self, field: &str, text: &str) -> Result<(), ApiError> {
        self.check_least(field, text, self.tokenizer.least_tokens(text))
    }

    /// Returns an error if a prompt `text`, the request's `field`, has no room by the tokens of its
    /// beginning. So a text that is much too long is not tokenized whole. Takes as long as to
    /// tokenize the beginning, at most two thirds of the text.
    pub(crate) fn check_beginning(&self, field: &str, text: &str) -> Result<(), ApiError> {
        let bytes = self.capacity.saturating_mul(BYTES_OF_TOKEN);
        if text.len() <= bytes.saturating_add(bytes / 2) {
            return Ok(());
        }
        self.check_least(field, text, self.tokenizer.least_tokens_of_beginning(text, bytes))
    }

    /// Token ids of a text that an answer is expected to repeat in part: no more of it than an
    /// answer has room for is read.
    pub(crate) fn encode_expected(&self, text: &str) -> Result<Vec<u32>, ApiError> {
        let bytes = self.capacity.saturating_mul(BYTES_OF_TOKEN).min(text.len());
        let bytes = (0..=bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let ids = self.tokenizer.encode(&text[..bytes], false);
        let mut ids =
            ids.map_err(|error| ApiError::invalid_field("prediction", error.to_string()))?;
        ids.truncate(self.capacity);
        Ok(ids)
    }

    fn check_least(&self, field: &str, text: &str, least: usize) -> Result<(), ApiError> {
        let capacity = self.capacity;
        if least <= capacity {
            return Ok(());
        }
        let message = format!(
            "this server has room for {capacity} tokens in a request, and the prompt of {} bytes has {least} at least: shorten it",
            text.len()
        );
        Err(ApiError::too_long(field, message))
    }

    /// Returns an error if a prompt of `tokens`, the request's `field`, has no room.
    pub(crate) fn check_ids(&self, field: &str, tokens: usize) -> Result<(), ApiError> {
        let capacity = self.capacity;
        if tokens <= capacity {
            return Ok(());
        }
        let message = format!(
            "this server has room for {capacity} tokens in a request, and the prompt has {tokens}: shorten it"
        );
        Err(ApiError::too_long(field, message))
    }
}

/// Digits that depend on the model's weights, the device that computes and the program's version.
fn fingerprint(engine: &Engine) -> String {
    let parts = [&trail_cli::fingerprint(engine.model()), engine.device(), version()];
    let digits = format!("{:x}", Sha256::digest(parts.join("\n")));
    format!("fp_{}", &digits[..12])
}
