//! A tokenizer from the metadata of a GGUF file, with the ids of llama.cpp.

use std::collections::HashSet;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::{SpecialToken, TemplateProcessing, Tokens};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};
use tokenizers::{Result as CrateResult, SplitDelimiterBehavior};

use super::breaks::BreakRemover;
use super::chat::ChatTemplate;
use super::scored_merges::ScoredMerges;
use super::token_model::TokenModel;
use super::tokenizer::{Inner, Tokenizer, contained};
use crate::model::LoadError;
use crate::model::gguf::{END_TOKENS, Metadata};

/// The character in place of a space in SentencePiece's vocabularies.
const SPACE: &str = "\u{2581}";
const DOWNLOAD_AGAIN: &str = "download the file again";

/// Kinds of tokens in `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
}

/// GPT-2's words. White space that no alternative matches is a separate word.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = concat!(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2: &str = concat!(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The words of gpt-oss and Phi-4 mini, as llama.cpp has them: letters beyond ASCII count as
/// capitals and as small ones.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
    r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Rules of a byte-level tokenizer, named by `tokenizer.ggml.pre`.
struct PreTokenization {
    names: &'static [&'static str],
    /// Patterns that split the text, each within the pieces of those before it.
    patterns: &'static [&'static str],
    /// A word that is a token is taken whole, whatever the merges would make.
    ignores_merges: bool,
    /// Begins with the beginning-of-sequence token unless the metadata says otherwise.
    adds_bos: bool,
}

const PRE_TOKENIZATIONS: [PreTokenization; 7] = [
    PreTokenization {
        names: &["smollm", "refact"],
        patterns: &[r"\p{N}", GPT2],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenization {
        names: &["llama-bpe", "llama3", "llama-v3"],
        patterns: &[LLAMA3],
        ignores_merges: true,
        adds_bos: true,
    },
    PreTokenization {
        names: &["dbrx"],
        patterns: &[LLAMA3],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenization {
        names: &["gpt-4o"],
        patterns: &[GPT4O],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenization {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[QWEN2],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenization {
        names: &["gpt-2"],
        patterns: &[GPT2],
        ignores_merges: false,
        adds_bos: false,
    },
    PreTokenization {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignores_merges: false,
        adds_bos: false,
    },
];

impl Tokenizer {
    /// Returns true if `metadata` has a vocabulary.
    pub fn is_in_gguf(metadata: &Metadata) -> bool {
        metadata.get("tokenizer.ggml.tokens").is_some()
    }

    /// The tokenizer in `metadata`, with ids below `vocab_size`.
    pub fn from_gguf(metadata: &Metadata, vocab_size: usize) -> Result<Self, LoadError> {
        let key = "tokenizer.ggml.model";
        let vocabulary = Vocabulary::read(metadata, vocab_size)?;
        let built = match metadata.text(key)? {
            Some("gpt2") => byte_level(metadata, &vocabulary)?,
            Some("llama") => sentence_piece(metadata, &vocabulary)?,
            _ => {
                let remedy = "choose a model with one of these tokenizers";
                return Err(metadata.refuse(key, "\"gpt2\" or \"llama\"", remedy));
            }
        };
        let fault = |found: String| {
            let expected = "a vocabulary with consistent rules";
            LoadError::new(metadata.file(), "tokenizer", expected, found, DOWNLOAD_AGAIN)
        };
        let built = built.map_err(|error| fault(error.to_string()))?;
        contained(|| vocabulary.finish(built)).map_err(fault)
    }
}

impl ChatTemplate {
    /// The chat template in `metadata`; without one, every conversation is rejected.
    pub fn from_gguf(metadata: &Metadata, vocab_size: usize) -> Result<Self, LoadError> {
        let key = "tokenizer.chat_template";
        let source = metadata.text(key)?.map(str::to_string);
        let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let text = |key: &str| {
            let id = metadata.token(key, vocab_size)?;
            Ok(id.and_then(|id| tokens.get(id as usize)).cloned().unwrap_or_default())
        };
        let bos_token = text("tokenizer.ggml.bos_token_id")?;
        let eos_token = text("tokenizer.ggml.eos_token_id")?;
        let template = Self::new(source, bos_token, eos_token);
        template.and_then(|template| template.in_file(metadata.file())).map_err(|error| {
            let (expected, file) = ("a Jinja template", metadata.file());
            let remedy = "use /v1/completions, or choose a file with a sound template";
            LoadError::new(file, key, expected, error.to_string(), remedy)
        })
    }
}

/// Tokens that begin a turn.
const TURN_TOKENS: [&str; 3] = ["<|im_start|>", "<|start_header_id|>", "<start_of_turn>"];

/// The tokens of the metadata.
struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i64>,
    /// Special tokens take the white space after them.
    strips: bool,
}

/// The special tokens of Phi-3 that do not take the white space after them.
const PHI3_KEEP: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// Parts of a tokenizer.
struct Parts {
    model: TokenModel,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: BreakRemover,
    decoder: DecoderWrapper,
    post_processor: Option<TemplateProcessing>,
}

impl Vocabulary {
    fn read(metadata: &Metadata, vocab_size: usize) -> Result<Self, LoadError> {
        let key = "tokenizer.ggml.tokens";
        let tokens = metadata.texts(key)?.unwrap_or_default();
        if tokens.is_empty() || tokens.len() > vocab_size {
            let expected = format!("1 to {vocab_size} tokens");
            return Err(metadata.refuse(key, &expected, DOWNLOAD_AGAIN));
        }
        // As in llama.cpp: an empty token cannot be looked up.
        let named = |(id, token): (usize, &String)| match token.is_empty() {
            true => format!("[EMPTY_{id}]"),
            false => token.clone(),
        };
        let tokens: Vec<String> = tokens.iter().enumerate().map(named).collect();
        let key = "tokenizer.ggml.token_type";
        let kinds = match metadata.ints(key)? {
            None => vec![kind::NORMAL; tokens.len()],
            Some(kinds) if kinds.len() >= tokens.len() => kinds[..tokens.len()].to_vec(),
            Some(_) => {
                let expected = format!("{} types", tokens.len());
                return Err(metadata.refuse(key, &expected, DOWNLOAD_AGAIN));
            }
        };
        let mut distinct = HashSet::new();
        if let Some(twice) = tokens.iter().find(|token| !distinct.insert(token.as_str())) {
            let expected = format!("each token once, not {twice:?} twice");
            return Err(metadata.refuse("tokenizer.ggml.tokens", &expected, DOWNLOAD_AGAIN));
        }
        // Phi-3's tokenizer.json says so of each token, its GGUF files do not.
        let strips = metadata.text("general.architecture")? == Some("phi3")
            && metadata.text("tokenizer.ggml.model")? == Some("llama");
        Ok(Vocabulary { tokens, kinds, strips })
    }

    /// True for tokens that are not text: those of control type, and those that end an answer or
    /// begin a turn though a converter has typed them as text.
    fn is_special(&self, id: usize) -> bool {
        let token = self.tokens[id].as_str();
        matches!(self.kinds[id], kind::CONTROL | kind::UNKNOWN)
            || END_TOKENS.contains(&token)
            || TURN_TOKENS.contains(&token)
    }

    /// The tokenizer of `parts`, with the tokens that are found before the text is split.
    fn finish(&self, parts: Parts) -> Tokenizer {
        let mut inner = Inner::new(parts.model);
        inner.with_normalizer(parts.normalizer);
        inner.with_pre_tokenizer(Some(parts.pre_tokenizer));
        inner.with_decoder(Some(parts.decoder));
        inner.with_post_processor(parts.post_processor);
        let ids = 0..self.tokens.len();
        let added = |&id: &usize| self.is_special(id) || self.kinds[id] == kind::USER_DEFINED;
        let token = |id: usize| {
            let token = self.tokens[id].as_str();
            let strips =
                self.strips && self.kinds[id] == kind::CONTROL && !PHI3_KEEP.contains(&token);
            AddedToken::from(token, self.is_special(id)).normalized(false).rstrip(strips)
        };
        inner.add_tokens(&ids.filter(added).map(token).collect::<Vec<_>>());
        Tokenizer::new(inner)
    }

    /// Adds the tokens at the ends of a text that the metadata asks for, beginning-of-sequence by
    /// `default`.
    fn post_processor(
        &self,
        metadata: &Metadata,
        default: bool,
    ) -> Result<Option<TemplateProcessing>, LoadError> {
        let mut template = vec!["$A".to_string()];
        let mut special = Vec::new();
        for (name, default) in [("bos", default), ("eos", false)] {
            let key = format!("tokenizer.ggml.add_{name}_token");
            if !metadata.flag(&key)?.unwrap_or(default) {
                continue;
            }
            let id_key = format!("tokenizer.ggml.{name}_token_id");
            let Some(id) = metadata.token(&id_key, self.tokens.len())? else {
                return Err(metadata.refuse(&id_key, "a token id", DOWNLOAD_AGAIN));
            };
            let at = if name == "bos" { 0 } else { template.len() };
            template.insert(at, name.to_string());
            let token = self.tokens[id as usize].clone();
            special.extend(SpecialToken::new(name.to_string(), vec![id], vec![token]));
        }
        if special.is_empty() {
            return Ok(None);
        }
        let mut builder = TemplateProcessing::builder();
        let built = builder.try_single(template).map_err(|error| error.to_string());
        let built = built.and_then(|builder| {
            builder.special_tokens(Tokens::from(special)).build().map_err(|error| error.to_string())
        });
        built.map(Some).map_err(|found| {
            let expected = "tokens at the ends of a text";
            LoadError::new(metadata.file(), "tokenizer", expected, found, DOWNLOAD_AGAIN)
        })
    }
}

/// A byte-level BPE.
fn byte_level(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
) -> Result<CrateResult<Parts>, LoadError> {
    let key = "tokenizer.ggml.pre";
    let name = metadata.text(key)?.unwrap_or("default");
    let rules = PRE_TOKENIZATIONS.iter().find(|rules| rules.names.contains(&name));
    let Some(rules) = rules else {
        let names: Vec<&str> =
            PRE_TOKENIZATIONS.iter().flat_map(|rules| rules.names).copied().collect();
        let expected = format!("one of {}", names.join(", "));
        let remedy = "choose a model with one of these pre-tokenizers, or its safetensors files";
        return Err(metadata.refuse(key, &expected, remedy));
    };
    let key = "tokenizer.ggml.merges";
    let Some(merges) = metadata.texts(key)? else {
        return Err(metadata.refuse(key, "a list of strings", DOWNLOAD_AGAIN));
    };
    // A merge is two tokens with a space between, and a token may begin with one.
    let parts = |merge: &String| {
        let at = merge.bytes().skip(1).position(|byte| byte == b' ')? + 1;
        Some((merge[..at].to_string(), merge[at + 1..].to_string()))
    };
    let Some(merges) = merges.iter().map(parts).collect() else {
        return Err(metadata.refuse(key, "two tokens in each merge", DOWNLOAD_AGAIN));
    };
    let post_processor = vocabulary.post_processor(metadata, rules.adds_bos)?;
    Ok((|| {
        let ids = vocabulary.tokens.iter().cloned().zip(0..).collect();
        let bpe = BPE::builder().vocab_and_merges::<tokenizers::models::bpe::Vocab>(ids, merges);
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for pattern in rules.patterns {
            let pattern = SplitPattern::Regex(pattern.to_string());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Parts {
            model: TokenModel::Crate(bpe.ignore_merges(rules.ignores_merges).build()?.into()),
            normalizer: None,
            pre_tokenizer: BreakRemover::before(PreTokenizers::new(steps).into()),
            decoder: ByteLevel::new(false, false, false).into(),
            post_processor,
        })
    })())
}

/// SentencePiece's BPE by scores.
fn sentence_piece(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
) -> Result<CrateResult<Parts>, LoadError> {
    let key = "tokenizer.ggml.scores";
    let count = vocabulary.tokens.len();
    let scores = metadata.floats(key)?.filter(|scores| scores.len() >= count);
    let scores = scores.filter(|scores| scores.iter().all(|score| score.is_finite()));
    let Some(scores) = scores else {
        return Err(metadata.refuse(key, &format!("{count} finite numbers"), DOWNLOAD_AGAIN));
    };
    let adds_space = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let post_processor = vocabulary.post_processor(metadata, true)?;
    let special = (0..count).map(|id| vocabulary.is_special(id)).collect();
    let tokens = vocabulary.tokens.clone();
    let model = ScoredMerges::new(tokens, scores[..count].to_vec(), special);
    Ok((|| {
        // The space is put before every piece of text that follows a special token.
        let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
        let mut decoders: Vec<DecoderWrapper> =
            vec![Replace::new(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
        if adds_space {
            normalizers.push(Prepend::new(SPACE.to_string()).into());
            decoders.push(Strip::new(' ', 1, 0).into());
        }
        normalizers.push(Replace::new(" ", SPACE)?.into());
        Ok(Parts {
            model: TokenModel::Scored(model),
            normalizer: Some(Normalizers::new(normalizers).into()),
            pre_tokenizer: BreakRemover::default(),
            decoder: Decoders::new(decoders).into(),
            post_processor,
        })
    })())
}
