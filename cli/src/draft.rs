//! `--speculate`: its values, and the draft model that it names.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use trail_runtime::engine::Speculate;
use trail_runtime::model::{Model, files};
use trail_runtime::text::Tokenizer;

use crate::error::Error;
use crate::loaded::LoadedModel;
use crate::locate;

/// Values of `--speculate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpeculateArg {
    Auto,
    Off,
    Ngram,
    /// A draft model at a path as of `--model`.
    Draft(PathBuf),
}

impl FromStr for SpeculateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<SpeculateArg, String> {
        match text {
            "auto" => Ok(SpeculateArg::Auto),
            "off" => Ok(SpeculateArg::Off),
            "ngram" => Ok(SpeculateArg::Ngram),
            _ => match text.strip_prefix("draft:") {
                Some(path) if !path.is_empty() => Ok(SpeculateArg::Draft(path.into())),
                _ => Err("choose auto, off, ngram or draft:PATH".into()),
            },
        }
    }
}

/// A model, where it lies, and its tokenizer, if any.
pub(crate) struct Vocabulary<'a> {
    pub(crate) path: &'a Path,
    pub(crate) model: &'a Model,
    pub(crate) tokenizer: Option<&'a Tokenizer>,
}

impl SpeculateArg {
    /// The use of speculation for the model of `vocabulary`, with its draft model loaded.
    pub(crate) fn load(&self, vocabulary: &Vocabulary<'_>) -> Result<Speculate, Error> {
        Ok(match self {
            SpeculateArg::Auto => Speculate::Auto,
            SpeculateArg::Off => Speculate::Off,
            SpeculateArg::Ngram => Speculate::Ngram,
            SpeculateArg::Draft(path) => {
                let model = Arc::new(load(path, vocabulary)?);
                Speculate::Draft { model, always: false }
            }
        })
    }
}

fn load(path: &Path, vocabulary: &Vocabulary<'_>) -> Result<Model, Error> {
    let path = locate::model(Some(path))?.path;
    let weights = files::find_weights(&path).map_err(|error| Error::usage(error.to_string()))?;
    let LoadedModel { model, tokenizer, .. } = LoadedModel::load(&path, &weights)?;
    let draft = Vocabulary { path: &path, model: &model, tokenizer: tokenizer.as_ref() };
    match difference(vocabulary, &draft) {
        Some(what) => Err(Error::usage(format!(
            "--speculate draft:{}: {what}: give a smaller model of the family of {}",
            path.display(),
            vocabulary.path.display()
        ))),
        None => Ok(model),
    }
}

/// The first difference of two vocabularies.
fn difference(own: &Vocabulary<'_>, draft: &Vocabulary<'_>) -> Option<String> {
    let [size, draft_size] = [own, draft].map(|of| of.model.config.vocab_size);
    if size != draft_size {
        return Some(format!("its vocabulary has {draft_size} tokens, the model's {size}"));
    }
    let (own, draft) = (own.tokenizer?, draft.tokenizer?);
    // An id without a token in one of both is padding, which no text has.
    let tokens = (0..size as u32).filter_map(|id| Some((id, own.token(id)?, draft.token(id)?)));
    let mut different = tokens.filter(|(_, own, draft)| own != draft);
    let (id, own, draft) = different.next()?;
    Some(format!("its token {id} is {draft:?}, the model's {own:?}"))
}

#[cfg(test)]
mod tests {
    use trail_runtime::model::{Dtype, ModelConfig};

    use super::*;

    #[test]
    fn values_are_parsed() {
        let draft = SpeculateArg::Draft("a:b.gguf".into());
        assert_eq!("draft:a:b.gguf".parse(), Ok(draft));
        assert_eq!("ngram".parse(), Ok(SpeculateArg::Ngram));
        for text in ["", "draft", "draft:", "on"] {
            let error = text.parse::<SpeculateArg>().unwrap_err();
            assert_eq!(error, "choose auto, off, ngram or draft:PATH", "{text}");
        }
    }

    fn tokenizer(words: &[&str]) -> Tokenizer {
        let vocab: Vec<String> =
            words.iter().enumerate().map(|(id, word)| format!("{word:?}: {id}")).collect();
        let json = format!(
            "{{\"model\": {{\"type\": \"WordLevel\", \"unk_token\": \"a\", \"vocab\": {{{}}}}}}}",
            vocab.join(", ")
        );
        Tokenizer::from_bytes(Path::new("tokenizer.json"), json.as_bytes(), 50).unwrap()
    }

    /// By size, and by the tokens that both know.
    #[test]
    fn vocabularies_are_compared() {
        let model = |vocab_size| {
            let config = ModelConfig { vocab_size, ..ModelConfig::named("tiny").unwrap() };
            Model::random_of(config, Dtype::F32, 1).unwrap()
        };
        let (large, small) = (model(64), model(56));
        let path = Path::new("model");
        let [ab, ac, abc] = [&["a", "b"][..], &["a", "c"], &["a", "b", "c"]].map(tokenizer);
        let difference = |draft: &Model, of: Option<&Tokenizer>| {
            let own = Vocabulary { path, model: &large, tokenizer: Some(&ab) };
            difference(&own, &Vocabulary { path, model: draft, tokenizer: of })
        };
        assert_eq!(difference(&large, Some(&ab)), None);
        assert_eq!(difference(&large, None), None);
        assert_eq!(difference(&large, Some(&abc)), None, "the model's third is padding");
        let different = difference(&large, Some(&ac));
        assert_eq!(different.unwrap(), "its token 1 is \"c\", the model's \"b\"");
        let different = difference(&small, Some(&ab));
        assert_eq!(different.unwrap(), "its vocabulary has 56 tokens, the model's 64");
    }
}
