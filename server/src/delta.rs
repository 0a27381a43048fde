//! A part of an answer, as it is reported.

use crate::answer_parts::CallPiece;
use crate::live::Progress;
use crate::logprobs::{CompletionLogprobs, Scored};
use crate::prompt_scores::PromptLogprobs;

/// Part of an answer since the last report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    /// Index of the choice within the response.
    pub index: usize,
    /// True for the first part of an answer.
    pub is_first: bool,
    /// New reasoning.
    pub reasoning: String,
    /// New content, without incomplete characters.
    pub text: String,
    /// New pieces of calls of tools.
    pub calls: Vec<CallPiece>,
    /// Number of tokens generated.
    pub tokens: u32,
    /// In the first delta of a prompt's first answer: tokens of the prompt that were shared.
    pub cached_tokens: u32,
    /// Number of tokens that are reasoning.
    pub reasoning_tokens: u32,
    /// In the last delta: accepted draft tokens.
    pub accepted_tokens: u32,
    /// Characters of the prompt before the answer.
    pub prompt_chars: usize,
    /// In the first delta: the echoed tokens with their log-probabilities, if requested.
    pub echoed: Option<CompletionLogprobs>,
    /// In the first delta: the same in vLLM's form, if requested.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Log-probabilities of the tokens, if requested.
    pub scored: Option<Vec<Scored>>,
    /// Ids of the tokens, if requested.
    pub token_ids: Option<Vec<u32>>,
    /// In the first delta: ids of the prompt, if requested.
    pub prompt_ids: Option<Vec<u32>>,
    /// Expectation of the rest, if requested.
    pub progress: Option<Progress>,
    /// Finish reason, in the last delta.
    pub finish: Option<&'static str>,
    /// In the last delta: the stop string that ended the answer.
    pub stop: Option<String>,
}

impl Delta {
    /// Appends the next delta.
    pub(crate) fn absorb(&mut self, next: Delta) {
        self.reasoning.push_str(&next.reasoning);
        self.text.push_str(&next.text);
        self.calls.extend(next.calls);
        self.tokens += next.tokens;
        self.reasoning_tokens += next.reasoning_tokens;
        self.cached_tokens += next.cached_tokens;
        self.accepted_tokens += next.accepted_tokens;
        self.finish = next.finish;
        self.stop = next.stop;
        if let (Some(ids), Some(more)) = (&mut self.token_ids, next.token_ids) {
            ids.extend(more);
        }
        if let (Some(scored), Some(more)) = (&mut self.scored, next.scored) {
            scored.extend(more);
        }
    }

    /// The calls of a whole answer, each in one piece.
    pub(crate) fn whole_calls(&mut self) -> Vec<CallPiece> {
        let mut calls: Vec<CallPiece> = Vec::new();
        for piece in std::mem::take(&mut self.calls) {
            match calls.last_mut() {
                Some(call) if piece.begins.is_none() => call.arguments.push_str(&piece.arguments),
                _ => calls.push(piece),
            }
        }
        calls
    }

    /// This delta in parts with one piece of a call each at the most: clients take the first piece
    /// of a call, which has its name, alone.
    pub(crate) fn pieces(mut self) -> Vec<Delta> {
        if self.calls.is_empty() {
            return vec![self];
        }
        let calls = std::mem::take(&mut self.calls);
        let (finish, stop, progress) = (self.finish.take(), self.stop.take(), self.progress.take());
        let index = self.index;
        let mut pieces = Vec::new();
        if !self.text.is_empty() || !self.reasoning.is_empty() {
            let rest = Delta { index, prompt_chars: self.prompt_chars, ..Delta::default() };
            pieces.push(std::mem::replace(&mut self, rest));
        }
        for call in calls {
            let rest = Delta { index, prompt_chars: self.prompt_chars, ..Delta::default() };
            let first = std::mem::replace(&mut self, rest);
            pieces.push(Delta { calls: vec![call], ..first });
        }
        if let Some(last) = pieces.last_mut() {
            (last.finish, last.stop, last.progress) = (finish, stop, progress);
        }
        pieces
    }

    pub(crate) fn has_news(&self) -> bool {
        let is_empty = self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty();
        !is_empty || self.finish.is_some()
    }
}
