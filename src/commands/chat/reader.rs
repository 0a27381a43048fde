//! The source of messages: a line editor in a terminal, else the lines of stdin.

use std::io::{BufRead, ErrorKind, IsTerminal, Read};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Editor, Helper};
use trail_cli::{Error, notice};

use super::message_text;

/// Prompt of the line editor.
const PROMPT: &str = "> ";

/// Length from which a line of stdin is refused, bytes.
const MAX_LINE: u64 = 64 << 20;

/// Reads messages.
pub enum Reader {
    /// Stdin is a terminal.
    Terminal(Box<Editor<Multiline, MemHistory>>),
    /// Stdin is a file or a pipe: each line is a message.
    Lines(std::io::StdinLock<'static>),
}

impl Reader {
    /// A reader of stdin.
    pub fn new() -> Result<Reader, Error> {
        if !std::io::stdin().is_terminal() {
            return Ok(Reader::Lines(std::io::stdin().lock()));
        }
        // The editor draws on the terminal also where stdout is a pipe.
        let config = Config::builder().behavior(Behavior::PreferTerm).auto_add_history(true);
        let editor = Editor::with_history(config.build(), MemHistory::new()).map_err(unreadable)?;
        let mut editor = Box::new(editor);
        editor.set_helper(Some(Multiline));
        Ok(Reader::Terminal(editor))
    }

    /// Returns true if a person types.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Reader::Terminal(_))
    }

    /// The next message; `None` at the end. Ctrl-C clears what was typed.
    pub fn read(&mut self) -> Result<Option<String>, Error> {
        let typed = match self {
            Reader::Lines(lines) => read_lines(lines)?,
            Reader::Terminal(editor) => match editor.readline(PROMPT) {
                Ok(typed) => Some(typed),
                Err(ReadlineError::Eof) => None,
                Err(ReadlineError::Interrupted) => {
                    notice("(Ctrl-D or /exit leaves)");
                    Some(String::new())
                }
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    notice("(a byte that is not UTF-8: the line was not read)");
                    Some(String::new())
                }
                Err(error) => return Err(unreadable(error)),
            },
        };
        Ok(typed.map(|typed| message_text::message(&typed)))
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::failed(format!("cannot read the messages: {error}"))
}

/// Reads one message of one or several lines.
fn read_lines(lines: &mut impl BufRead) -> Result<Option<String>, Error> {
    let mut typed = String::new();
    loop {
        let mut line = Vec::new();
        if lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
            return Ok(Some(typed).filter(|typed| !typed.is_empty()));
        }
        if line.len() as u64 == MAX_LINE {
            let mib = MAX_LINE >> 20;
            return Err(Error::usage(format!("a line on stdin has {mib} MiB or more: cut it")));
        }
        let line = String::from_utf8(line)
            .map_err(|_| Error::usage("a line on stdin is not UTF-8: convert it first"))?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        typed.push_str(line.strip_suffix('\r').unwrap_or(line));
        if message_text::is_complete(&typed) {
            return Ok(Some(typed));
        }
        typed.push('\n');
    }
}

/// Enter begins another line of a message that is not complete.
pub struct Multiline;

impl Helper for Multiline {}

impl Completer for Multiline {
    type Candidate = String;
}

impl Hinter for Multiline {
    type Hint = String;
}

impl Highlighter for Multiline {}

impl Validator for Multiline {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match message_text::is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_and_the_last_one_needs_no_end() {
        let mut lines = "one\r\n\ntwo\\\nthree\n\"\"\"\nfour".as_bytes();
        let mut read = || read_lines(&mut lines).expect("UTF-8");
        assert_eq!(read().as_deref(), Some("one"));
        assert_eq!(read().as_deref(), Some(""));
        assert_eq!(read().as_deref(), Some("two\\\nthree"));
        assert_eq!(read().as_deref(), Some("\"\"\"\nfour\n"));
        assert_eq!(read(), None);
        assert_eq!(read_lines(&mut &b"caf\xe9\n"[..]).expect_err("refused").code(), 2);
    }
}
