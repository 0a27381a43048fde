//! A parser of an answer that arrives in deltas.

use super::cursor::Nesting;
use super::{Found, Head, Place, ToolFormat};

/// Bytes of a call after which its arguments are passed on as they arrive. A call of fewer is
/// complete when it is passed on, so that malformed ones stay text.
const LIVE_AFTER: usize = 1024;
/// Longest list of calls in Python, bytes: it counts as a whole.
const MAX_LIST: usize = 64 << 10;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Content.
    Text(String),
    /// A call of the tool of this name begins.
    Call(String),
    /// Arguments of the latest call: all pieces are a JSON object.
    Arguments(String),
}

/// Finds calls in an answer. White space beside them is no content.
#[derive(Debug)]
pub(crate) struct ToolParser {
    format: ToolFormat,
    names: Vec<String>,
    /// Calls behind the first one are dropped.
    only_first: bool,
    /// Text that is not passed on.
    held: String,
    state: State,
    place: Place,
    /// White space behind the content so far.
    space: String,
    /// True if a call, and no content, was the last part.
    behind_call: bool,
    calls: usize,
}

#[derive(Debug)]
enum State {
    /// Between calls.
    Between,
    /// In arguments that are passed on as they arrive, with what may come behind them.
    Arguments(Nesting, &'static [&'static str]),
    /// Behind them.
    Tail(&'static [&'static str]),
}

impl ToolParser {
    /// A parser of an answer with calls of the tools `names`.
    pub(crate) fn new(format: ToolFormat, names: Vec<String>, only_first: bool) -> Self {
        ToolParser {
            format,
            names,
            only_first,
            held: String::new(),
            state: State::Between,
            place: Place::Start,
            space: String::new(),
            behind_call: false,
            calls: 0,
        }
    }

    /// Number of calls that were passed on.
    pub(crate) fn calls(&self) -> usize {
        if self.only_first { self.calls.min(1) } else { self.calls }
    }

    /// Takes the next text of the answer.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        self.advance(false)
    }

    /// Takes the answer's end.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let mut parts = self.advance(true);
        if !self.behind_call {
            let space = std::mem::take(&mut self.space);
            push_text(&mut parts, &space);
        }
        parts
    }

    fn advance(&mut self, is_ended: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        while !self.held.is_empty() {
            let goes_on = match &self.state {
                State::Between => self.between(is_ended, &mut parts),
                State::Arguments(..) => self.arguments(&mut parts),
                State::Tail(tail) => self.tail(tail, is_ended),
            };
            if !goes_on {
                break;
            }
        }
        parts
    }

    /// Takes what the format finds. Returns false if that needs more text.
    fn between(&mut self, is_ended: bool, parts: &mut Vec<Part>) -> bool {
        let limit = match self.format {
            ToolFormat::Pythonic => MAX_LIST,
            _ => LIVE_AFTER,
        };
        // A longer text must not change what its beginning is.
        let is_full = self.held.len() > limit;
        let mut window = (0..=limit.min(self.held.len())).rev();
        let window = window.find(|&at| self.held.is_char_boundary(at)).unwrap_or(0);
        let found =
            self.format.find(&self.held[..window], self.place, is_ended && !is_full, &self.names);
        match found {
            Found::Open(Some(head)) if is_full => self.go_live(head, parts),
            Found::Open(_) if is_full => {
                let first = self.held.chars().next().map_or(0, char::len_utf8);
                self.take_text(first, parts);
            }
            Found::Open(_) => return false,
            Found::Text(bytes) => self.take_text(bytes, parts),
            Found::Separator(bytes) => self.drop_held(bytes),
            Found::Calls(calls, bytes) => {
                self.drop_held(bytes);
                for call in calls {
                    self.begin(call.name, parts);
                    self.pass_on(call.arguments, parts);
                }
            }
        }
        true
    }

    fn drop_held(&mut self, bytes: usize) {
        self.held.drain(..bytes);
    }

    fn take_text(&mut self, bytes: usize, parts: &mut Vec<Part>) {
        let rest = self.held.split_off(bytes);
        let text = std::mem::replace(&mut self.held, rest);
        self.place = Place::Text;
        let kept = text.trim_end().len();
        if kept > 0 {
            self.behind_call = false;
            let space = std::mem::take(&mut self.space);
            push_text(parts, &space);
            push_text(parts, &text[..kept]);
        }
        self.space.push_str(&text[kept..]);
    }

    fn go_live(&mut self, head: Head, parts: &mut Vec<Part>) {
        self.begin(head.name, parts);
        self.drop_held(head.arguments);
        self.state = State::Arguments(Nesting::default(), head.tail);
    }

    fn begin(&mut self, name: String, parts: &mut Vec<Part>) {
        self.calls += 1;
        (self.place, self.behind_call) = (Place::Call, true);
        self.space.clear();
        if self.calls == self.calls() {
            parts.push(Part::Call(name));
        }
    }

    fn pass_on(&mut self, arguments: String, parts: &mut Vec<Part>) {
        if self.calls != self.calls() {
            return;
        }
        match parts.last_mut() {
            Some(Part::Arguments(last)) => last.push_str(&arguments),
            _ => parts.push(Part::Arguments(arguments)),
        }
    }

    /// Passes on arguments up to their end.
    fn arguments(&mut self, parts: &mut Vec<Part>) -> bool {
        let State::Arguments(nesting, tail) = &mut self.state else { return false };
        let end = self.held.bytes().position(|byte| nesting.closes(byte)).map(|at| at + 1);
        if end.is_some() {
            self.state = State::Tail(tail);
        }
        let rest = self.held.split_off(end.unwrap_or(self.held.len()));
        let arguments = std::mem::replace(&mut self.held, rest);
        self.pass_on(arguments, parts);
        true
    }

    /// Drops what may come behind arguments. Returns false if that needs more text.
    fn tail(&mut self, tail: &'static [&'static str], is_ended: bool) -> bool {
        let Some((first, others)) = tail.split_first() else {
            self.state = State::Between;
            return true;
        };
        let text = self.held.trim_start();
        if text.starts_with(first) {
            self.drop_held(self.held.len() - text.len() + first.len());
        } else if first.starts_with(text) && !is_ended {
            return false;
        }
        self.state = State::Tail(others);
        true
    }
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(Part::Text(last)) => last.push_str(text),
        _ => parts.push(Part::Text(text.to_owned())),
    }
}
