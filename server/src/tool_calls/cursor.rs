//! A reader of a text whose end may not have arrived.

use serde::de::IgnoredAny;

use super::{Call, Head};

/// The reason for which something was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The text ends within it.
    More,
    /// The text is something else.
    No,
}

/// White space of JSON.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// A place in a text.
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    is_ended: bool,
    /// Names of the tools.
    names: &'a [String],
    head: Option<Head>,
}

impl<'a> Cursor<'a> {
    /// The beginning of `text`, an answer's rest if it `is_ended`, with tools of these `names`.
    pub(super) fn new(text: &'a str, is_ended: bool, names: &'a [String]) -> Self {
        Cursor { text, at: 0, is_ended, names, head: None }
    }

    /// The cursor at the text's beginning.
    pub(super) fn back(self) -> Self {
        Cursor { at: 0, ..self }
    }

    /// Bytes before the cursor.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// True if no text follows.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// The call whose arguments have begun.
    pub(super) fn take_head(&mut self) -> Option<Head> {
        self.head.take()
    }

    /// The text behind the cursor.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Passes over white space.
    pub(super) fn space(&mut self) {
        self.at += self.rest().bytes().take_while(|&byte| is_space(byte)).count();
    }

    /// The next byte, which stays.
    pub(super) fn peek(&self) -> Result<u8, Stop> {
        self.rest().bytes().next().ok_or(Stop::More)
    }

    /// Passes over the next character.
    pub(super) fn next(&mut self) -> Result<char, Stop> {
        let next = self.rest().chars().next().ok_or(Stop::More)?;
        self.at += next.len_utf8();
        Ok(next)
    }

    /// Passes over `literal`.
    pub(super) fn literal(&mut self, literal: &str) -> Result<(), Stop> {
        if self.rest().starts_with(literal) {
            self.at += literal.len();
            return Ok(());
        }
        Err(if literal.starts_with(self.rest()) { Stop::More } else { Stop::No })
    }

    /// The bytes that `is_part` takes, and one behind them at least.
    pub(super) fn word(&mut self, is_part: impl Fn(u8) -> bool) -> Result<&'a str, Stop> {
        let rest = self.rest();
        let length = rest.bytes().take_while(|&byte| is_part(byte)).count();
        if length == rest.len() {
            return Err(Stop::More);
        }
        // `is_part` takes ASCII.
        let word = rest.get(..length).ok_or(Stop::No)?;
        self.at += length;
        Ok(word)
    }

    /// The name of a tool: letters, digits, `_`, `-` and `.`.
    pub(super) fn name(&mut self) -> Result<String, Stop> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        match self.word(is_part) {
            Ok(name) => self.known(name.to_owned()),
            // No tool's name begins so.
            Err(Stop::More) if !self.names.iter().any(|name| name.starts_with(self.rest())) => {
                Err(Stop::No)
            }
            Err(stop) => Err(stop),
        }
    }

    fn known(&self, name: String) -> Result<String, Stop> {
        if self.names.contains(&name) { Ok(name) } else { Err(Stop::No) }
    }

    /// A JSON string.
    fn string(&mut self) -> Result<String, Stop> {
        let start = self.at;
        if self.peek()? != b'"' {
            return Err(Stop::No);
        }
        self.value()?;
        serde_json::from_str(&self.text[start..self.at]).map_err(|_| Stop::No)
    }

    /// Passes over a JSON value by its brackets and quotes; what is between them is not validated.
    fn value(&mut self) -> Result<(), Stop> {
        let mut nesting = Nesting::default();
        let is_scalar = !matches!(self.peek()?, b'{' | b'[' | b'"');
        let is_end = |byte: u8| is_space(byte) || b",}]".contains(&byte);
        for (at, byte) in self.rest().bytes().enumerate() {
            if is_scalar && is_end(byte) {
                self.at += at;
                return Ok(());
            }
            if !is_scalar && nesting.closes(byte) {
                self.at += at + 1;
                return Ok(());
            }
        }
        Err(Stop::More)
    }

    /// A JSON object of arguments for the tool `name`, behind which `tail` may come.
    pub(super) fn arguments(
        &mut self,
        name: &str,
        tail: &'static [&'static str],
    ) -> Result<String, Stop> {
        let start = self.at;
        if self.peek()? != b'{' {
            return Err(Stop::No);
        }
        self.head = Some(Head { name: name.to_owned(), arguments: start, tail });
        self.value()?;
        let text = &self.text[start..self.at];
        let valid: Result<IgnoredAny, _> = serde_json::from_str(text);
        valid.map(|_| text.to_owned()).map_err(|_| Stop::No)
    }

    /// A JSON object with the name of a tool and its arguments, by one of the names `keys`.
    pub(super) fn object(
        &mut self,
        keys: &[&str],
        tail: &'static [&'static str],
    ) -> Result<Call, Stop> {
        let start = self.at;
        let (mut name, mut arguments) = (None, None);
        self.literal("{")?;
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            self.literal(":")?;
            self.space();
            match key.as_str() {
                "name" if name.is_none() => {
                    let read = self.string()?;
                    name = Some(self.known(read)?);
                }
                key if keys.contains(&key) && arguments.is_none() => {
                    arguments = Some(match &name {
                        Some(name) => self.arguments(name, tail)?,
                        None => self.arguments_before_name()?,
                    });
                }
                "name" => return Err(Stop::No),
                key if keys.contains(&key) => return Err(Stop::No),
                _ => self.value()?,
            }
            self.space();
            match self.next()? {
                ',' => {}
                '}' => break,
                _ => return Err(Stop::No),
            }
        }
        let valid: Result<IgnoredAny, _> = serde_json::from_str(&self.text[start..self.at]);
        let call = name.zip(arguments).filter(|_| valid.is_ok());
        call.map(|(name, arguments)| Call { name, arguments }).ok_or(Stop::No)
    }

    fn arguments_before_name(&mut self) -> Result<String, Stop> {
        let arguments = self.arguments("", &[]);
        self.head = None;
        arguments
    }
}

/// Brackets and quotes of a JSON value that are open.
#[derive(Clone, Debug, Default)]
pub(super) struct Nesting {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Nesting {
    /// Takes the value's next byte. Returns true if it is the last one.
    pub(super) fn closes(&mut self, byte: u8) -> bool {
        if self.is_escaped {
            self.is_escaped = false;
            return false;
        }
        match byte {
            b'\\' => self.is_escaped = self.in_string,
            b'"' => self.in_string = !self.in_string,
            b'{' | b'[' if !self.in_string => self.depth += 1,
            b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
            _ => return false,
        }
        self.depth == 0 && !self.in_string
    }
}
