//! A command's error: one line of text and an exit code.

use std::fmt;

use trail_platform::printable_line;
use trail_runtime::engine::{BuildError, SubmitError};
use trail_runtime::model::LoadError;
use trail_runtime::text::{ChatError, EncodeError};

use crate::signal::SignalKind;

/// A failed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// 1: the command failed; 2: it was given bad arguments; 3: a server's engine broke down; 130:
    /// SIGINT ended it.
    code: u8,
    message: String,
}

impl Error {
    /// Exit code of a server whose engine broke down.
    pub const BREAKDOWN: u8 = 3;

    /// An error in the arguments: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Error { code: 2, message: message.into() }
    }

    /// A failure with valid arguments: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Error { code: 1, message: message.into() }
    }

    /// The breakdown of a server's engine: exit code 3, which asks for a new start.
    pub fn breakdown(message: impl Into<String>) -> Self {
        Error { code: Error::BREAKDOWN, message: message.into() }
    }

    /// A run that SIGINT ended: exit code 130, as of a process that the signal ended.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Error { code: SignalKind::Interrupt.exit_code() as u8, message: message.into() }
    }

    /// A request that the engine refused: in the arguments if the request is invalid. `which` names
    /// the request.
    pub fn refused(which: &str, error: &SubmitError) -> Self {
        let code = if error.is_invalid() { 2 } else { 1 };
        Error { code, message: format!("{which}{error}") }
    }

    /// The same about `what`.
    pub fn about(self, what: impl fmt::Display) -> Self {
        Error { message: format!("{what}: {}", self.message), ..self }
    }

    /// The process's exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quoted paths and system errors may contain line breaks; the message must be one line.
        for (index, line) in self.message.lines().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{}", printable_line(line.trim()))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// A failure that a lower layer states as text.
impl From<String> for Error {
    fn from(message: String) -> Self {
        Error::failed(message)
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Error::failed(error.to_string())
    }
}

impl From<trail_probe::Error> for Error {
    fn from(error: trail_probe::Error) -> Self {
        Error::failed(error.to_string())
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Refused(why) => Error::usage(why),
            BuildError::Unsupported(why) | BuildError::Failed(why) => Error::failed(why),
        }
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Self {
        Error::refused("", &error)
    }
}

impl From<EncodeError> for Error {
    fn from(error: EncodeError) -> Self {
        Error::usage(error.to_string())
    }
}

impl From<ChatError> for Error {
    fn from(error: ChatError) -> Self {
        Error::usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_several_lines_is_shown_as_one() {
        assert_eq!(Error::failed("a\n  b\u{1b}\n").to_string(), "a b\\u{1b}");
        assert_eq!((Error::failed("").code(), Error::usage("").code()), (1, 2));
    }
}
