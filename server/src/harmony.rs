//! gpt-oss's answers (harmony): messages in channels, `<|channel|>analysis<|message|>...<|end|>`,
//! then `<|start|>assistant<|channel|>final<|message|>...`.
//!
//! `analysis` is reasoning, `final` and `commentary` are content. A message to a function is passed
//! on as content in one form, `<|channel|>commentary to=functions.NAME<|message|>ARGUMENTS`, in
//! which [`tool_calls`](crate::tool_calls) find it: models write the recipient before or behind the
//! channel.

const CHANNEL: &str = "<|channel|>";
const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
/// A recipient before the channel: at the answer's beginning, as the prompt ends in
/// `<|start|>assistant`.
const TO: &str = "to=functions.";
/// Beginnings of a header.
const BEGINS: [&str; 3] = [CHANNEL, START, TO];
/// Ends of a message.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];
/// Special tokens of the format.
pub(crate) const TOKENS: [&str; 7] =
    [CHANNEL, START, MESSAGE, "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"];
/// The beginning of a message to a function.
pub(crate) const CALL: &str = "<|channel|>commentary to=functions.";
/// Longest header, bytes: a longer text is content.
const MAX_HEADER: usize = 1024;

/// Divides an answer by its channels.
#[derive(Clone, Debug)]
pub(crate) struct HarmonyParser {
    state: State,
    /// Text that is not passed on.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the text of a message.
    Header,
    Reasoning,
    Content,
}

impl HarmonyParser {
    /// A parser of an answer, which begins with a header.
    pub(crate) fn new() -> HarmonyParser {
        HarmonyParser { state: State::Header, held: String::new() }
    }

    /// True within reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Takes the next text of the answer. Appends its reasoning to `reasoning` and returns its
    /// content.
    pub(crate) fn push(&mut self, text: &str, reasoning: &mut String) -> String {
        self.held.push_str(text);
        let mut content = String::new();
        while match self.state {
            State::Header => self.header(&mut content),
            State::Reasoning => self.message(reasoning),
            State::Content => self.message(&mut content),
        } {}
        content
    }

    /// Takes the answer's end, as [`push`](Self::push) takes text. A header without a message is
    /// dropped; a text that only might have become one is content.
    pub(crate) fn finish(&mut self, reasoning: &mut String) -> String {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Reasoning => reasoning.push_str(&held),
            State::Content => return held,
            State::Header if BEGINS.iter().any(|begin| held.trim_start().starts_with(begin)) => {}
            State::Header => return held,
        }
        String::new()
    }

    /// Reads a header. Returns false if that needs more text.
    fn header(&mut self, content: &mut String) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        let may_begin = |marker: &str| marker.starts_with(text) || text.starts_with(marker);
        if !BEGINS.into_iter().any(may_begin) {
            self.state = State::Content;
            return true;
        }
        let fits = |(header, _): &(&str, &str)| header.len() + MESSAGE.len() <= MAX_HEADER;
        let Some((header, message)) = text.split_once(MESSAGE).filter(fits) else {
            let is_long = text.len() > MAX_HEADER;
            if is_long {
                // With its beginning, at which a message would end again.
                let begin = BEGINS.into_iter().find(|begin| text.starts_with(begin));
                let passed = self.held.len() - text.len() + begin.map_or(0, str::len);
                let rest = self.held.split_off(passed);
                content.push_str(&std::mem::replace(&mut self.held, rest));
                self.state = State::Content;
            }
            return is_long;
        };
        let word = |text: &str| {
            let is_end = |c: char| c.is_whitespace() || c == '<';
            text.split(is_end).next().unwrap_or_default().to_owned()
        };
        let channel = header.split_once(CHANNEL).map(|(_, behind)| word(behind));
        let recipient = header.split_once(TO);
        if let Some((_, recipient)) = recipient {
            content.push_str(CALL);
            content.push_str(&word(recipient));
            content.push_str(MESSAGE);
        }
        let is_reasoning = channel.as_deref() == Some("analysis") && recipient.is_none();
        self.state = if is_reasoning { State::Reasoning } else { State::Content };
        self.held = message.to_owned();
        true
    }

    /// Passes on a message up to its end, or to what may begin one. Returns false if more text must
    /// come.
    fn message(&mut self, out: &mut String) -> bool {
        let end = ENDS.iter().filter_map(|end| Some((self.held.find(end)?, *end))).min();
        if let Some((at, end)) = end {
            out.push_str(&self.held[..at]);
            let behind = if end == START { at } else { at + end.len() };
            self.held = self.held.split_off(behind);
            self.state = State::Header;
            return true;
        }
        let longest = ENDS
            .iter()
            .flat_map(|end| (1..end.len()).rev().find(|&bytes| self.held.ends_with(&end[..bytes])));
        let kept = self.held.len() - longest.max().unwrap_or(0);
        let rest = self.held.split_off(kept);
        out.push_str(&std::mem::replace(&mut self.held, rest));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(deltas: impl Iterator<Item = &'a str>) -> [String; 2] {
        let (mut parser, mut reasoning) = (HarmonyParser::new(), String::new());
        let mut content: String = deltas.map(|text| parser.push(text, &mut reasoning)).collect();
        content += &parser.finish(&mut reasoning);
        [reasoning, content]
    }

    /// Asserts reasoning and content of an answer, whole and in characters.
    fn expect(text: &str, expected: [&str; 2]) {
        let characters = text.char_indices().map(|(at, next)| &text[at..at + next.len_utf8()]);
        assert_eq!(read([text].into_iter()), expected, "{text}");
        assert_eq!(read(characters), expected, "{text}");
    }

    #[test]
    fn channels_are_reasoning_and_content() {
        expect(
            "<|channel|>analysis<|message|>I < you.<|end|><|start|>assistant<|channel|>final\
             <|message|>Hi.<|return|>",
            ["I < you.", "Hi."],
        );
        expect("<|channel|>final<|message|>Hi", ["", "Hi"]);
        expect("<|channel|>analysis<|message|>So <|e", ["So <|e", ""]);
        expect("<|channel|>analysis<|message|>a<|end|><|start|>assis", ["a", ""]);
        // A preamble is for the user.
        expect("<|channel|>commentary<|message|>I look.<|end|>", ["", "I look."]);
        // Text without channels.
        for text in ["Hi <|there", "", "<", "to", "to=5"] {
            expect(text, ["", text]);
        }
    }

    #[test]
    fn calls_are_passed_on_in_one_form() {
        let call = "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}";
        let headers = [
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
            "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>",
            "<|channel|>analysis to=functions.f code<|message|>",
            " to=functions.f<|channel|>commentary json<|message|>",
        ];
        for header in headers {
            expect(&format!("{header}{{\"a\": 1}}<|call|>"), ["", call]);
        }
    }

    #[test]
    fn a_header_without_an_end_becomes_content() {
        for begin in BEGINS {
            let text = format!("{begin}{}", "x".repeat(2 * MAX_HEADER));
            expect(&text, ["", &text]);
        }
    }
}
