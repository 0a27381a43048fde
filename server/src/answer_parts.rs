//! The parts of an answer: reasoning, content, calls of tools.

use std::sync::Arc;

use trail_cli::random;
use trail_runtime::text::Tokenizer;

use crate::delta::Delta;
use crate::reasoning::{CLOSE, OPEN, ReasoningFormat, ReasoningParser};
use crate::tool_calls::{Part, ToolFormat, ToolParser};

/// The parts that an answer may have beside content.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerParts {
    /// Reasoning, by the end of the prompt.
    pub reasoning: Option<(ReasoningFormat, ReasoningParser)>,
    /// Calls of tools.
    pub tools: Option<ToolForm>,
}

/// Calls that an answer may have.
#[derive(Clone, Debug)]
pub(crate) struct ToolForm {
    pub format: ToolFormat,
    /// Names of the tools.
    pub names: Arc<[String]>,
    /// Calls behind the first one are dropped.
    pub only_first: bool,
}

impl AnswerParts {
    /// Ids of the special tokens that delimit parts.
    pub(crate) fn tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let reasoning = self.reasoning.iter().flat_map(|(format, _)| format.tokens());
        let calls = self.tools.iter().flat_map(|tools| tools.format.tokens());
        reasoning.chain(calls).filter_map(|token| tokenizer.token_id(token)).collect()
    }

    /// The tokens that open and close the reasoning of an answer: the first is `None` for an answer
    /// that begins in it. `None` for answers without, and where the tokenizer has no such tokens.
    pub(crate) fn reasoning_tokens(&self, tokenizer: &Tokenizer) -> Option<(Option<u32>, u32)> {
        let (_, parser) = self.reasoning.as_ref()?;
        let close = tokenizer.token_id(CLOSE)?;
        match parser.is_reasoning() {
            true => Some((None, close)),
            false => Some((Some(tokenizer.token_id(OPEN)?), close)),
        }
    }

    /// The parts of an answer that must follow a grammar: text is found to be reasoning by its
    /// tokens alone, as the grammar is that of what follows.
    pub(crate) fn under_a_grammar(self, tokenizer: &Tokenizer) -> AnswerParts {
        let reasoning = self.reasoning_tokens(tokenizer).and(self.reasoning);
        AnswerParts { reasoning, ..self }
    }

    /// A parser of an answer; `None` for one of content alone.
    pub(crate) fn parser(self) -> Option<AnswerParser> {
        if self.reasoning.is_none() && self.tools.is_none() {
            return None;
        }
        let format = self.tools.as_ref().map(|tools| tools.format);
        let calls = self
            .tools
            .map(|tools| ToolParser::new(tools.format, tools.names.to_vec(), tools.only_first));
        let reasoning = self.reasoning.map(|(_, parser)| parser);
        Some(AnswerParser {
            reasoning,
            calls,
            is_mistral: format == Some(ToolFormat::Mistral),
            begun: 0,
        })
    }
}

/// A call of a tool, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallPiece {
    /// Index of the call within the answer.
    pub index: usize,
    /// Its id and the tool's name, in the first piece.
    pub begins: Option<(String, String)>,
    /// The next part of its arguments, a JSON object.
    pub arguments: String,
}

/// Divides an answer into its parts.
#[derive(Debug)]
pub(crate) struct AnswerParser {
    reasoning: Option<ReasoningParser>,
    calls: Option<ToolParser>,
    is_mistral: bool,
    /// Calls that have begun.
    begun: usize,
}

impl AnswerParser {
    /// True within reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(ReasoningParser::is_reasoning)
    }

    /// True once the answer has a call.
    pub(crate) fn has_calls(&self) -> bool {
        self.begun > 0
    }

    /// Appends the parts of the next `text` to `delta`.
    pub(crate) fn push(&mut self, text: &str, delta: &mut Delta) {
        let content = match &mut self.reasoning {
            Some(parser) => parser.push(text, &mut delta.reasoning),
            None => text.to_owned(),
        };
        self.content(&content, delta);
    }

    /// Appends the parts at the answer's end to `delta`.
    pub(crate) fn finish(&mut self, delta: &mut Delta) {
        if let Some(parser) = &mut self.reasoning {
            let content = parser.finish(&mut delta.reasoning);
            self.content(&content, delta);
        }
        let parts = self.calls.as_mut().map(ToolParser::finish);
        self.take(parts.unwrap_or_default(), delta);
    }

    fn content(&mut self, content: &str, delta: &mut Delta) {
        match &mut self.calls {
            Some(parser) => {
                let parts = parser.push(content);
                self.take(parts, delta);
            }
            None => delta.text.push_str(content),
        }
    }

    fn take(&mut self, parts: Vec<Part>, delta: &mut Delta) {
        for part in parts {
            match part {
                Part::Text(text) => delta.text.push_str(&text),
                Part::Call(name) => {
                    let begins = Some((self.id(), name));
                    let arguments = String::new();
                    delta.calls.push(CallPiece { index: self.begun, begins, arguments });
                    self.begun += 1;
                }
                Part::Arguments(arguments) => {
                    let index = self.begun.saturating_sub(1);
                    delta.calls.push(CallPiece { index, begins: None, arguments });
                }
            }
        }
    }

    /// A new id, in the form that the model's template takes.
    fn id(&self) -> String {
        let id = random::id();
        if self.is_mistral { id[..9].to_owned() } else { format!("call_{}", &id[..24]) }
    }
}

/// Reasoning, content and calls of an answer in `deltas`, for the fuzz target.
#[cfg(fuzzing)]
pub(crate) fn parts(
    format: ToolFormat,
    reasoning: ReasoningFormat,
    deltas: &[&str],
) -> [String; 3] {
    let names = ["f", "add"].map(str::to_owned).into();
    let form = AnswerParts {
        reasoning: reasoning.parser("").map(|parser| (reasoning, parser)),
        tools: Some(ToolForm { format, names, only_first: false }),
    };
    let (mut parser, mut delta) = (form.parser().expect("a parser"), Delta::default());
    deltas.iter().for_each(|text| parser.push(text, &mut delta));
    parser.finish(&mut delta);
    let calls = delta.whole_calls().into_iter();
    let calls =
        calls.map(|call| format!("{:?}{}", call.begins.map(|begins| begins.1), call.arguments));
    let calls = calls.collect();
    [delta.reasoning, delta.text, calls]
}
