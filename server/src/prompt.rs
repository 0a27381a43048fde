//! Tokenization of prompts, outside the threads that serve connections.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};
use trail_runtime::text::Tokenizer;

use crate::body_permit::BodyPermit;
use crate::echo::Echo;
use crate::error::ApiError;
use crate::model_entry::ModelUse;
use crate::number::Count;

/// The prompts of a completion, or the inputs of embeddings: `MAX` at the most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt<const MAX: usize> {
    /// Prompts as text.
    Texts(Vec<String>),
    /// Prompts as token ids.
    Ids(Vec<Vec<u32>>),
}

impl<const MAX: usize> Prompt<MAX> {
    /// Returns the token ids of each prompt. Texts that cannot fit the context are refused before
    /// any is tokenized, or by the words of their beginning. A client that leaves ends the work at
    /// the next prompt of a list: the tokenizer takes a text in one piece, since where it may be
    /// cut depends on the model's rules.
    /// Returns the permit as well.
    pub(crate) async fn encode(
        self,
        model: ModelUse,
        permit: BodyPermit,
    ) -> Result<(Vec<Vec<u32>>, BodyPermit), ApiError> {
        let texts = match self {
            Prompt::Ids(ids) => {
                ids.iter().try_for_each(|ids| model.check_ids("prompt", ids.len()))?;
                return Ok((ids, permit));
            }
            Prompt::Texts(texts) => texts,
        };
        texts.iter().try_for_each(|text| model.check_text("prompt", text))?;
        let encode = move |text: &String| {
            model.check_beginning("prompt", text)?;
            let ids = model.tokenizer.encode(text, true);
            let ids = ids.map_err(|error| ApiError::invalid_field("prompt", error.to_string()))?;
            // The prompts after it are not tokenized.
            model.check_ids("prompt", ids.len()).map(|()| ids)
        };
        let (ids, permit) = permit
            .run(move |has_left| {
                let stay = texts.iter().take_while(|_| !has_left());
                stay.map(encode).collect::<Result<_, _>>()
            })
            .await?;
        Ok((ids?, permit))
    }
}

impl<const MAX: usize> Prompt<MAX> {
    /// The prompts' texts before their answers; `ids` are the token ids of each. With the places of
    /// the tokens if `offsets`.
    pub(crate) fn echo(
        self,
        tokenizer: &Arc<Tokenizer>,
        ids: &[Vec<u32>],
        offsets: bool,
    ) -> Vec<Echo> {
        let texts = match self {
            Prompt::Texts(texts) => texts,
            Prompt::Ids(_) => Vec::new(),
        };
        let mut texts = texts.into_iter();
        ids.iter().map(|ids| Echo::new(tokenizer, ids, texts.next(), offsets)).collect()
    }
}

/// A string, an array of strings, an array of token ids, or an array of such arrays. Unlike serde's
/// `untagged` it keeps no copy of what it reads, and stops at the first prompt too many.
impl<'de, const MAX: usize> Deserialize<'de> for Prompt<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor::<MAX>)
    }
}

struct PromptVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for PromptVisitor<MAX> {
    type Value = Prompt<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(
            "a string, an array of strings, an array of token ids, or an array of such arrays",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompt<MAX>, E> {
        Ok(Prompt::Texts(vec![text.to_owned()]))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Prompt<MAX>, E> {
        Ok(Prompt::Texts(vec![text]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompt<MAX>, A::Error> {
        match items.next_element()? {
            None => Ok(Prompt::Texts(Vec::new())),
            Some(Item::Text(first)) => {
                let text = |item| if let Item::Text(text) = item { Some(text) } else { None };
                Ok(Prompt::Texts(collect(first, items, MAX, text)?))
            }
            Some(Item::Id(first)) => {
                let id = |item| if let Item::Id(id) = item { Some(id) } else { None };
                Ok(Prompt::Ids(vec![collect(first, items, usize::MAX, id)?]))
            }
            Some(Item::Ids(first)) => {
                let ids = |item| if let Item::Ids(ids) = item { Some(ids) } else { None };
                Ok(Prompt::Ids(collect(first, items, MAX, ids)?))
            }
        }
    }
}

/// Collects `first` and the other items, which must be of the same form, up to `most`.
fn collect<'de, A: SeqAccess<'de>, T>(
    first: T,
    mut items: A,
    max: usize,
    same: impl Fn(Item) -> Option<T>,
) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(item) = items.next_element()? {
        if all.len() == max {
            return Err(A::Error::custom(format_args!("more than {max} prompts: send fewer")));
        }
        let other = || {
            A::Error::custom(
                "expected items of one form in the array: all strings, all token ids, or all arrays of token ids",
            )
        };
        all.push(same(item).ok_or_else(other)?);
    }
    Ok(all)
}

/// An element of an array of prompts, or of token ids.
enum Item {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string, a token id, or an array of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Item, E> {
        Ok(Item::Text(text))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
        Count::deserialize(id.into_deserializer()).map(|id| Item::Id(id.get()))
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<Item, E> {
        Count::deserialize(id.into_deserializer()).map(|id| Item::Id(id.get()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = items.next_element::<Count>()? {
            ids.push(id.get());
        }
        Ok(Item::Ids(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::MAX_CHOICES;

    fn parse(json: &str) -> Result<Prompt<MAX_CHOICES>, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn four_spellings() {
        let texts = |texts: &[&str]| Ok(Prompt::Texts(texts.iter().map(|&t| t.into()).collect()));
        assert_eq!(parse(r#""a""#), texts(&["a"]));
        assert_eq!(parse(r#"["a", "b\u0041"]"#), texts(&["a", "bA"]));
        assert_eq!(parse("[]"), texts(&[]));
        assert_eq!(parse("[1.0, 2e0]"), Ok(Prompt::Ids(vec![vec![1, 2]])));
        assert_eq!(parse("[1, 2]"), Ok(Prompt::Ids(vec![vec![1, 2]])));
        assert_eq!(parse("[[1], [2, 3], []]"), Ok(Prompt::Ids(vec![vec![1], vec![2, 3], vec![]])));
        for mixed in [r#"[1, "a"]"#, r#"["a", 1]"#, "[[1], 1]"] {
            let error = parse(mixed).expect_err("refused");
            assert!(error.contains("of one form"), "{error}");
        }
        for other in ["5", "{}", "null", "[null]", "[-1]", "[4294967296]", "[[-1]]", "[[[1]]]"] {
            let error = parse(other).expect_err("refused");
            assert!(error.contains("expected"), "{other}: {error}");
        }
    }

    #[test]
    fn prompts_are_counted_while_they_are_read() {
        let list = |prompt: &str, n| format!("[{}]", vec![prompt; n].join(","));
        for prompt in [r#""a""#, "[1]"] {
            assert!(parse(&list(prompt, MAX_CHOICES)).is_ok());
            let error = parse(&list(prompt, MAX_CHOICES + 1)).expect_err("refused");
            assert!(error.contains("more than 128 prompts"), "{error}");
        }
        // The text after the first prompt too many is not read, so it need not be JSON.
        let error =
            parse(&format!("[{} !", r#""a","#.repeat(MAX_CHOICES + 1))).expect_err("refused");
        assert!(error.contains("more than 128 prompts"), "{error}");
        assert!(parse(&list("1", 5000)).is_ok(), "token ids of one prompt");
    }
}
