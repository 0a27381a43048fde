//! Reasoning in the text of an answer: `<think>...</think>` before its content, or in a channel.

use std::fmt;
use std::str::FromStr;

use crate::format_names;
use crate::harmony::{self, HarmonyParser};

pub(crate) const OPEN: &str = "<think>";
pub(crate) const CLOSE: &str = "</think>";

/// The form in which a model writes its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// DeepSeek R1: an answer begins in its reasoning, with or without the opening tag.
    DeepseekR1,
    /// Qwen3: an answer may have reasoning, between tags.
    Qwen3,
    /// gpt-oss: an answer has channels.
    Harmony,
    /// Reasoning stays text.
    Text,
}

/// The formats by the names that vLLM has.
const NAMES: [(&str, ReasoningFormat); 4] = [
    ("deepseek_r1", ReasoningFormat::DeepseekR1),
    ("qwen3", ReasoningFormat::Qwen3),
    ("openai_gptoss", ReasoningFormat::Harmony),
    ("none", ReasoningFormat::Text),
];

impl ReasoningFormat {
    /// The format that a chat template shows.
    pub(crate) fn of_template(source: &str) -> ReasoningFormat {
        match source.contains(CLOSE) {
            _ if source.contains("<|channel|>") => ReasoningFormat::Harmony,
            // An answer that the prompt begins is found by the prompt.
            true if source.contains("<｜Assistant｜>") => ReasoningFormat::DeepseekR1,
            true => ReasoningFormat::Qwen3,
            false => ReasoningFormat::Text,
        }
    }

    /// Special tokens that delimit reasoning.
    pub(crate) fn tokens(self) -> &'static [&'static str] {
        match self {
            ReasoningFormat::Text => &[],
            ReasoningFormat::Harmony => &harmony::TOKENS,
            ReasoningFormat::DeepseekR1 | ReasoningFormat::Qwen3 => &[OPEN, CLOSE],
        }
    }

    /// A parser of the answer to `prompt`; `None` if there is nothing to find.
    pub(crate) fn parser(self, prompt: &str) -> Option<ReasoningParser> {
        let prompt = prompt.trim_end();
        let state = match self {
            ReasoningFormat::Text => return None,
            ReasoningFormat::Harmony => {
                return Some(ReasoningParser::Harmony(HarmonyParser::new()));
            }
            _ if prompt.ends_with(OPEN) => State::Reasoning,
            _ if prompt.ends_with(CLOSE) => return None,
            ReasoningFormat::DeepseekR1 => State::Opening,
            ReasoningFormat::Qwen3 => State::Start,
        };
        Some(ReasoningParser::Tags(TagParser { state, held: String::new(), has_begun: false }))
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(format_names::name(&NAMES, self))
    }
}

impl FromStr for ReasoningFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        format_names::find(&NAMES, name)
    }
}

/// Divides an answer into reasoning and content.
#[derive(Clone, Debug)]
pub(crate) enum ReasoningParser {
    /// By tags.
    Tags(TagParser),
    /// By channels.
    Harmony(HarmonyParser),
}

impl ReasoningParser {
    /// True within reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        match self {
            ReasoningParser::Tags(parser) => parser.is_reasoning(),
            ReasoningParser::Harmony(parser) => parser.is_reasoning(),
        }
    }

    /// Takes the next text of the answer. Appends its reasoning to `reasoning` and returns its
    /// content.
    pub(crate) fn push(&mut self, text: &str, reasoning: &mut String) -> String {
        match self {
            ReasoningParser::Tags(parser) => parser.push(text, reasoning),
            ReasoningParser::Harmony(parser) => parser.push(text, reasoning),
        }
    }

    /// Takes the answer's end, as [`push`](Self::push) takes text.
    pub(crate) fn finish(&mut self, reasoning: &mut String) -> String {
        match self {
            ReasoningParser::Tags(parser) => parser.finish(reasoning),
            ReasoningParser::Harmony(parser) => parser.finish(reasoning),
        }
    }
}

/// Divides an answer by tags, without the white space around its parts.
#[derive(Clone, Debug)]
pub(crate) struct TagParser {
    state: State,
    /// Text that is not passed on.
    held: String,
    /// True once there was reasoning.
    has_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Reasoning may begin, by a tag.
    Start,
    /// Reasoning begins, a tag may come before it.
    Opening,
    Reasoning,
    /// Behind the closing tag.
    Behind,
    Content,
}

impl TagParser {
    fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Opening | State::Reasoning)
    }

    fn push(&mut self, text: &str, reasoning: &mut String) -> String {
        if self.state == State::Content {
            return text.to_owned();
        }
        self.held.push_str(text);
        if matches!(self.state, State::Start | State::Opening) {
            let begun = self.held.trim_start();
            if OPEN.starts_with(begun) && begun.len() < OPEN.len() {
                return String::new();
            }
            self.state = match begun.strip_prefix(OPEN) {
                Some(behind) => {
                    self.held = behind.to_owned();
                    State::Reasoning
                }
                None if self.state == State::Start => State::Content,
                None => State::Reasoning,
            };
        }
        if self.state == State::Reasoning {
            self.reason(reasoning);
        }
        if self.state == State::Behind && !self.held.trim_start().is_empty() {
            self.held = self.held.trim_start().to_owned();
            self.state = State::Content;
        }
        if self.state == State::Content { std::mem::take(&mut self.held) } else { String::new() }
    }

    /// Passes on reasoning up to its closing tag, or to what may begin one.
    fn reason(&mut self, reasoning: &mut String) {
        if !self.has_begun {
            self.held = self.held.trim_start().to_owned();
            self.has_begun = !self.held.is_empty();
        }
        if let Some((before, behind)) = self.held.split_once(CLOSE) {
            reasoning.push_str(before.trim_end());
            (self.held, self.state) = (behind.to_owned(), State::Behind);
            return;
        }
        let begun = (1..CLOSE.len()).rev().find(|&bytes| self.held.ends_with(&CLOSE[..bytes]));
        let kept = self.held[..self.held.len() - begun.unwrap_or(0)].trim_end().len();
        let rest = self.held.split_off(kept);
        reasoning.push_str(&std::mem::replace(&mut self.held, rest));
    }

    fn finish(&mut self, reasoning: &mut String) -> String {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Reasoning => reasoning.push_str(held.trim_end()),
            State::Opening => reasoning.push_str(held.trim()),
            State::Start => return held,
            State::Behind | State::Content => {}
        }
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(parser: ReasoningParser, deltas: impl Iterator<Item = &'a str>) -> [String; 2] {
        let (mut parser, mut reasoning, mut content) = (parser, String::new(), String::new());
        deltas.for_each(|delta| content += &parser.push(delta, &mut reasoning));
        content += &parser.finish(&mut reasoning);
        [reasoning, content]
    }

    /// Asserts reasoning and content of an answer to `prompt`, whole and in characters.
    fn expect(format: ReasoningFormat, prompt: &str, text: &str, expected: [&str; 2]) {
        let parser = format.parser(prompt).expect("a parser");
        let characters = text.char_indices().map(|(at, next)| &text[at..at + next.len_utf8()]);
        assert_eq!(read(parser.clone(), [text].into_iter()), expected, "{text}");
        assert_eq!(read(parser, characters), expected, "{text}");
    }

    #[test]
    fn reasoning_is_divided_from_content() {
        use ReasoningFormat::{DeepseekR1, Qwen3};
        let both = "<think>\nI < you.\n\n</think>\n\nHi.\n";
        for format in [DeepseekR1, Qwen3] {
            expect(format, "<|im_start|>assistant\n", both, ["I < you.", "Hi.\n"]);
            // The prompt has the opening tag.
            expect(format, "x<think>\n", "So.\n</think>Hi.", ["So.", "Hi."]);
            expect(format, "x<think>\n", "So </th", ["So </th", ""]);
            expect(format, "x", "<think>So ", ["So", ""]);
            expect(format, "x", "<think></think>\n", ["", ""]);
            assert!(format.parser("x<think>\n\n</think>\n\n").is_none());
        }
        expect(Qwen3, "x", " Hi <think>.", ["", " Hi <think>."]);
        expect(Qwen3, "x", " <thi", ["", " <thi"]);
        expect(DeepseekR1, "x", "So.</think>Hi.", ["So.", "Hi."]);
        expect(DeepseekR1, "x", " So <thi", ["So <thi", ""]);
        assert!(ReasoningFormat::Text.parser("x<think>").is_none());
    }

    #[test]
    fn a_format_is_known_by_its_template() {
        let of = ReasoningFormat::of_template;
        assert_eq!(of("{{ messages }}"), ReasoningFormat::Text);
        assert_eq!(of("<think>\n\n</think>"), ReasoningFormat::Qwen3);
        assert_eq!(of("<|start|>assistant<|channel|>"), ReasoningFormat::Harmony);
        assert_eq!(of("<｜Assistant｜>'</think>' in content"), ReasoningFormat::DeepseekR1);
        assert_eq!("qwen3".parse(), Ok(ReasoningFormat::Qwen3));
        assert!("x".parse::<ReasoningFormat>().is_err());
    }
}
