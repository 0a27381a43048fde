//! Report of a prompt before its answer: its text, and its tokens with their log-probabilities, in
//! OpenAI's form (`echo` with `logprobs`) and vLLM's (`prompt_logprobs`).

use std::fmt;
use std::sync::Arc;

use serde::ser::{SerializeMap, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};
use trail_runtime::text::Tokenizer;

use crate::delta::Delta;
use crate::echo::Echo;
use crate::logprobs::{CompletionLogprobs, Scorer, token_text};

/// Lowest log-probability of an answer, as in vLLM: JSON has no minus infinity.
const MIN_LOGPROB: f32 = -9999.0;

/// One choice's report of its prompt, while the scores arrive.
pub(crate) struct PromptReport {
    pub echo: Echo,
    /// Most likely tokens beside each echoed one; `None`: the echo is text alone.
    pub echo_top: Option<u8>,
    /// The same in vLLM's form.
    pub top: Option<u8>,
    pub scores: PromptScores,
}

/// A prompt's tokens with their log-probabilities, as compact as the engine's events.
pub(crate) struct PromptScores {
    tokenizer: Arc<Tokenizer>,
    /// Token ids of the prompt.
    prompt: Vec<u32>,
    /// One for each token but the first, so far.
    tokens: Vec<Score>,
    /// Most likely tokens of all positions, best first at each.
    top: Vec<(u32, f32)>,
}

struct Score {
    logprob: f32,
    rank: u32,
    /// End of its alternatives.
    top_end: usize,
}

impl PromptReport {
    /// True once nothing of the prompt is to come.
    pub(crate) fn is_complete(&self) -> bool {
        let is_scored = self.echo_top.is_some() || self.top.is_some();
        !is_scored || self.scores.tokens.len() + 1 >= self.scores.prompt.len()
    }

    /// Puts the report into the first delta.
    pub(crate) fn finish(self, delta: &mut Delta) {
        let PromptReport { echo, echo_top, top, scores } = self;
        delta.prompt_chars = echo.text.chars().count();
        delta.echoed = echo_top.map(|top| scores.columns(top, &echo.offsets));
        delta.text = echo.text;
        delta.prompt_logprobs = top.map(|top| PromptLogprobs { scores: Arc::new(scores), top });
    }
}

impl PromptScores {
    /// Scores of `prompt`, none so far.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, prompt: Vec<u32>) -> Self {
        PromptScores { tokenizer, prompt, tokens: Vec::new(), top: Vec::new() }
    }

    /// Adds one of the most likely tokens at the next position.
    pub(crate) fn alternative(&mut self, id: u32, logprob: f32) {
        self.top.push((id, logprob));
    }

    /// Adds the score of the next token.
    pub(crate) fn token(&mut self, logprob: f32, rank: u32) {
        let logprob = logprob.max(MIN_LOGPROB);
        self.tokens.push(Score { logprob, rank, top_end: self.top.len() });
    }

    /// The tokens but the first with their scores and their `top` most likely alternatives.
    fn scored(&self, top: u8) -> impl Iterator<Item = (u32, &Score, &[(u32, f32)])> {
        let mut begin = 0;
        self.prompt.iter().skip(1).zip(&self.tokens).map(move |(&id, score)| {
            let all = &self.top[begin..score.top_end];
            begin = score.top_end;
            (id, score, &all[..all.len().min(top.into())])
        })
    }

    /// OpenAI's columns. The first token has no score, as nothing comes before it.
    fn columns(&self, top: u8, offsets: &[usize]) -> CompletionLogprobs {
        let (mut columns, mut scorer) =
            (CompletionLogprobs::default(), Scorer::new(self.tokenizer.clone()));
        let mut offsets = offsets.iter().copied().chain(std::iter::repeat(0));
        let mut next = || offsets.next().unwrap_or_default();
        if let Some(&first) = self.prompt.first() {
            columns.push_first(&scorer.token(first, 0.0, next()));
        }
        for (id, score, top) in self.scored(top) {
            top.iter().for_each(|&(id, logprob)| scorer.alternative(id, logprob));
            columns.push(&scorer.token(id, score.logprob, next()), 0);
        }
        columns
    }
}

/// vLLM's `prompt_logprobs`: null for the first token, then for each token an object by token ids,
/// of itself and of the most likely tokens. Written from the compact scores, as a long prompt has
/// many.
#[derive(Clone)]
pub(crate) struct PromptLogprobs {
    scores: Arc<PromptScores>,
    top: u8,
}

impl fmt::Debug for PromptLogprobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scores of {} tokens", self.scores.prompt.len())
    }
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.scores.prompt.len()))?;
        list.serialize_element(&None::<()>)?;
        for (id, score, top) in self.scores.scored(self.top) {
            list.serialize_element(&Position {
                tokenizer: &self.scores.tokenizer,
                id,
                score,
                top,
            })?;
        }
        list.end()
    }
}

/// One position of [`PromptLogprobs`].
struct Position<'a> {
    tokenizer: &'a Tokenizer,
    id: u32,
    score: &'a Score,
    top: &'a [(u32, f32)],
}

impl Serialize for Position<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Position { tokenizer, id, score, top } = *self;
        let entry = |id, logprob, rank| Entry { tokenizer, id, logprob, rank };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(&id, &entry(id, score.logprob, score.rank))?;
        for (rank, &(other, logprob)) in (1..).zip(top).filter(|(_, of)| of.0 != id) {
            map.serialize_entry(&other, &entry(other, logprob, rank))?;
        }
        map.end()
    }
}

/// vLLM's `Logprob`.
struct Entry<'a> {
    tokenizer: &'a Tokenizer,
    id: u32,
    logprob: f32,
    rank: u32,
}

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entry = serializer.serialize_struct("Logprob", 3)?;
        entry.serialize_field("logprob", &f64::from(self.logprob))?;
        entry.serialize_field("rank", &self.rank)?;
        entry.serialize_field("decoded_token", &token_text(self.tokenizer, self.id))?;
        entry.end()
    }
}
