//! Requests whose answers are known: the server gave them before anything disturbed it.

use std::net::TcpStream;

use serde_json::{Value, json};
use trail_platform::rng::Rng;

use crate::common::{Server, http, pieces};

pub(crate) const COMPLETIONS: &str = "/v1/completions";

const PROMPTS: [&str; 6] = [
    "Count to ten.",
    "Show the table of 9 from 1 to 16.",
    "Repeat this: \u{1F600} \u{65e5}\u{672c}",
    "a",
    "Tell me a story.",
    "List the letters of the alphabet in order, one a line, and then do it again backwards.",
];

/// A request, and the text that answers it.
struct Question {
    body: Value,
    text: String,
}

/// Requests of different lengths, greedy and sampled.
pub(crate) struct Questions(Vec<Question>);

impl Questions {
    /// Asks each question once, one after the other, for up to `max_tokens` tokens.
    pub(crate) fn ask(server: &Server, seed: u64, max_tokens: u64) -> Questions {
        let mut rng = Rng::new(seed);
        let question = |prompt: &&str| {
            let body = json!({
                "prompt": prompt,
                "max_tokens": 8 + rng.below(max_tokens - 7),
                "temperature": if rng.below(2) == 0 { 0.0 } else { 0.8 },
                "seed": rng.below(1000),
                "ignore_eos": true,
            });
            let answer = server.post(COMPLETIONS, &body);
            Question { body, text: text(&answer).to_owned() }
        };
        Questions(PROMPTS.iter().map(question).collect())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn body(&self, index: usize, stream: bool) -> Value {
        let mut body = self.0[index].body.clone();
        body["stream"] = stream.into();
        body
    }

    /// Sends question `index` for a stream.
    pub(crate) fn begin(&self, server: &Server, index: usize) -> TcpStream {
        server.begin(COMPLETIONS, &self.body(index, true))
    }

    /// Asks each question again.
    pub(crate) fn check(&self, server: &Server) {
        for index in 0..self.count() {
            self.check_whole(index, &server.post(COMPLETIONS, &self.body(index, false)));
        }
    }

    /// Compares a whole answer to question `index`.
    pub(crate) fn check_whole(&self, index: usize, answer: &Value) {
        assert_eq!(text(answer), self.0[index].text, "{}", self.0[index].body);
    }

    /// Reads the stream that answers question `index` and compares it. Returns false if the server
    /// had no room for the request, or was draining when it came.
    pub(crate) fn check_stream(&self, index: usize, stream: TcpStream) -> bool {
        self.check_answer(index, http::receive(stream))
    }

    /// As [`check_stream`](Self::check_stream), of a stream that was read.
    pub(crate) fn check_answer(&self, index: usize, (status, body): (u16, String)) -> bool {
        if matches!(status, 429 | 503) {
            return false;
        }
        assert_eq!(status, 200, "{body}");
        let streamed: String = pieces(&body).iter().map(text).collect();
        assert_eq!(streamed, self.0[index].text, "{}", self.0[index].body);
        true
    }
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().expect("text")
}
