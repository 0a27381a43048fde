//! The output tokens of an answer that passes through, as it says them or by its chunks.

use serde::Deserialize;

/// Longest event whose usage is read, and longest answer in one piece, bytes.
const MAX_EVENT: usize = 1 << 20;
const MAX_ANSWER: usize = 4 << 20;

/// Bytes of an answer's text for each token, where it does not count them.
const BYTES_PER_TOKEN: usize = 4;

/// Counts the tokens of an answer.
pub(crate) enum TokenCount {
    /// A stream of server-sent events.
    Events(Events),
    /// One object; `None` once it is too long.
    Object(Option<Vec<u8>>),
    /// Of another type, or compressed.
    Unknown,
}

/// Reads the lines of a stream.
#[derive(Default)]
pub(crate) struct Events {
    /// The line so far; `None` while one that is too long goes on.
    line: Option<Vec<u8>>,
    is_skipping: bool,
    /// Events with data, but for the end.
    chunks: u32,
    reported: Option<u32>,
}

/// The counts of an answer in the dialects that there are.
#[derive(Default, Deserialize)]
struct Reported {
    usage: Option<Usage>,
    /// Of the Responses API's last event.
    response: Option<Box<Reported>>,
    /// llama.cpp's own.
    tokens_predicted: Option<u32>,
    timings: Option<Timings>,
    /// TGI's own.
    details: Option<Details>,
    #[serde(default)]
    generated_text: Text,
    /// SGLang's own.
    meta_info: Option<Usage>,
    #[serde(default)]
    text: Text,
    /// The answers' texts, for servers that count nothing.
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    content: Text,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Text,
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Text,
}

/// The length of a text, bytes; 0 of another value.
#[derive(Default)]
struct Text(usize);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Text(value.as_str().map_or(0, str::len)))
    }
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u32>,
    output_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Timings {
    predicted_n: Option<u32>,
}

#[derive(Deserialize)]
struct Details {
    generated_tokens: Option<u32>,
}

impl Reported {
    fn tokens(&self) -> Option<u32> {
        let usage = self.usage.as_ref().or(self.meta_info.as_ref());
        let usage = usage.and_then(|of| of.completion_tokens.or(of.output_tokens));
        let below = || self.response.as_ref()?.tokens();
        let timed = || self.timings.as_ref()?.predicted_n;
        let detailed = || self.details.as_ref()?.generated_tokens;
        usage.or_else(below).or(self.tokens_predicted).or_else(timed).or_else(detailed)
    }

    /// Tokens of the answers' texts, estimated; `None` without one.
    fn of_texts(&self) -> Option<u32> {
        let message = |of: &Choice| of.message.as_ref().map_or(0, |message| message.content.0);
        let bytes: usize = self.choices.iter().map(|of| of.text.0 + message(of)).sum();
        let own = self.content.0 + self.generated_text.0 + self.text.0;
        let tokens = (bytes + own).div_ceil(BYTES_PER_TOKEN);
        (tokens > 0).then(|| u32::try_from(tokens).unwrap_or(u32::MAX))
    }
}

impl TokenCount {
    /// A count of an answer of this type, `Content-Encoding` aside.
    pub(crate) fn of(media_type: &str) -> TokenCount {
        match media_type.split(';').next().unwrap_or_default().trim() {
            "text/event-stream" => TokenCount::Events(Events::default()),
            "application/json" => TokenCount::Object(Some(Vec::new())),
            _ => TokenCount::Unknown,
        }
    }

    /// Takes in the next bytes. Returns the number of chunks with text that ended in them.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> u32 {
        match self {
            TokenCount::Events(events) => events.add(bytes),
            TokenCount::Object(object) => {
                match object.as_mut().filter(|all| all.len() + bytes.len() <= MAX_ANSWER) {
                    Some(all) => all.extend_from_slice(bytes),
                    None => *object = None,
                }
                0
            }
            TokenCount::Unknown => 0,
        }
    }

    /// The tokens of the whole answer; `None` if it shows none.
    pub(crate) fn total(&self) -> Option<u32> {
        match self {
            TokenCount::Events(events) => {
                events.reported.or(Some(events.chunks)).filter(|&of| of > 0)
            }
            TokenCount::Object(object) => {
                let object = object.as_ref()?;
                let reported: Reported = serde_json::from_slice(object).ok()?;
                reported.tokens().or_else(|| reported.of_texts())
            }
            TokenCount::Unknown => None,
        }
    }
}

impl Events {
    fn add(&mut self, mut bytes: &[u8]) -> u32 {
        let before = self.chunks;
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend(&bytes[..end]);
            let line = self.line.take().unwrap_or_default();
            if !std::mem::take(&mut self.is_skipping) {
                self.read(&line);
            }
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
        self.chunks - before
    }

    fn extend(&mut self, bytes: &[u8]) {
        let line = self.line.get_or_insert_default();
        if self.is_skipping || line.len() + bytes.len() > MAX_EVENT {
            (self.is_skipping, self.line) = (true, None);
        } else {
            line.extend_from_slice(bytes);
        }
    }

    fn read(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { return };
        if data == b"[DONE]" || data.is_empty() {
            return;
        }
        let counts = [
            "\"usage\"",
            "\"timings\"",
            "\"tokens_predicted\"",
            "\"generated_tokens\"",
            "\"meta_info\"",
        ];
        let mentions = |name: &str| data.windows(name.len()).any(|of| of == name.as_bytes());
        let reported = match counts.into_iter().any(mentions) {
            true => {
                serde_json::from_slice::<Reported>(data).ok().and_then(|reported| reported.tokens())
            }
            false => None,
        };
        self.reported = reported.or(self.reported);
        self.chunks = self.chunks.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(media_type: &str, body: &str, step: usize) -> Option<u32> {
        let mut count = TokenCount::of(media_type);
        body.as_bytes().chunks(step).for_each(|bytes| {
            count.add(bytes);
        });
        count.total()
    }

    const STREAM: &str = "text/event-stream; charset=utf-8";

    #[test]
    fn the_usage_of_every_dialect_is_read_however_it_is_cut() {
        let delta = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
        for (last, tokens) in [
            ("data: {\"usage\":{\"completion_tokens\":7,\"x\":1}}\n\ndata: [DONE]\n\n", 7),
            ("event: message_delta\r\ndata: {\"usage\":{\"output_tokens\":8}}\r\n\r\n", 8),
            ("data: {\"type\":\"a\",\"response\":{\"usage\":{\"output_tokens\":9}}}\n\n", 9),
            ("data: {\"timings\":{\"predicted_n\":10}}\n\n", 10),
            ("data: {\"content\":\"\",\"tokens_predicted\":11}\n\n", 11),
            ("data: {\"token\":{},\"details\":{\"generated_tokens\":12}}\n\n", 12),
            ("data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":13}}\n\n", 13),
            // Without one, chunks are counted.
            ("data: [DONE]\n\n", 2),
            (": comment\n\n", 2),
        ] {
            let body = format!("{delta}{delta}{last}");
            for step in [1, 2, 7, 1000] {
                assert_eq!(count(STREAM, &body, step), Some(tokens), "{body} by {step}");
            }
        }
    }

    #[test]
    fn an_object_says_its_usage_or_its_text_does() {
        let body = r#"{"choices":[{"text":"a b"}],"usage":{"completion_tokens":5}}"#;
        assert_eq!(count("application/json", body, 3), Some(5));
        for body in [
            r#"{"choices":[{"text":"abcdefgh"}]}"#,
            r#"{"choices":[{"message":{"content":"abcdefgh"}}]}"#,
            r#"{"content":"abcdefgh"}"#,
            r#"{"generated_text":"abcdefgh"}"#,
            r#"{"text":"abcdefgh"}"#,
            r#"{"text":"a","meta_info":{"completion_tokens":2}}"#,
            r#"{"generated_text":"a","details":{"finish_reason":"length","generated_tokens":2}}"#,
        ] {
            assert_eq!(count("application/json", body, 3), Some(2), "{body}");
        }
        for body in ["", "{", "[1]"] {
            assert_eq!(count("application/json", body, 1), None, "{body}");
        }
        assert_eq!(count("text/html", "<p>", 1), None);
    }

    #[test]
    fn what_is_too_long_is_not_kept() {
        let event = |pad: usize| {
            let pad = "a".repeat(pad);
            format!("data: {{\"pad\":\"{pad}\",\"usage\":{{\"output_tokens\":3}}}}\n\n")
        };
        let object =
            |pad: usize| format!("{{\"usage\":{{\"output_tokens\":3}}}}{}", " ".repeat(pad));
        for (pad, events, whole) in [(9, Some(3), Some(3)), (MAX_ANSWER, Some(1), None)] {
            let stream = event(pad) + "data: {}\n\n";
            assert_eq!(count(STREAM, &stream, 1 << 16), events, "{pad}");
            assert_eq!(count("application/json", &object(pad), 1 << 16), whole, "{pad}");
        }
    }
}
