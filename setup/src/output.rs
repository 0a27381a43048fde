//! Stdout, for readers that may go away.

use std::io::{ErrorKind, StdoutLock, Write};

use crate::error::Error;

/// Stdout, or nothing where a JSON object will follow.
pub struct Output {
    stdout: Option<StdoutLock<'static>>,
    /// Whether the text so far ends inside a line.
    open_line: bool,
}

impl Output {
    /// Writes to stdout, each piece at once.
    pub fn stdout() -> Self {
        Output { stdout: Some(std::io::stdout().lock()), open_line: false }
    }

    /// Writes nothing.
    pub fn silent() -> Self {
        Output { stdout: None, open_line: false }
    }

    /// Writes a piece; false once the reader has gone away, which is no error.
    pub fn write(&mut self, piece: &str) -> Result<bool, Error> {
        let Some(stdout) = &mut self.stdout else { return Ok(true) };
        if !piece.is_empty() {
            self.open_line = !piece.ends_with('\n');
        }
        match stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Error::failed(format!("cannot write to stdout: {error}"))),
        }
    }

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> Result<(), Error> {
        self.write(line)?;
        self.finish()
    }

    /// Ends the last line, if it is open.
    pub fn finish(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.open_line) {
            self.write("\n")?;
        }
        Ok(())
    }
}
