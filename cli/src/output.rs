//! Stdout that tolerates a closed pipe.

use std::io::{ErrorKind, Write};

use crate::error::Error;

/// Stdout, or stderr or nothing where a JSON object is printed on stdout at the end.
pub struct Output {
    stream: Option<Box<dyn Write>>,
    /// True if the last piece did not end in a line break.
    open_line: bool,
}

impl Output {
    /// An output to stdout, flushed after each piece.
    pub fn stdout() -> Self {
        Output { stream: Some(Box::new(std::io::stdout().lock())), open_line: false }
    }

    /// An output to stderr.
    pub fn stderr() -> Self {
        Output { stream: Some(Box::new(std::io::stderr())), open_line: false }
    }

    /// An output that discards everything.
    pub fn silent() -> Self {
        Output { stream: None, open_line: false }
    }

    /// Writes a piece. Returns false once the reader has closed the pipe, which is no error.
    pub fn write(&mut self, piece: &str) -> Result<bool, Error> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        if !piece.is_empty() {
            self.open_line = !piece.ends_with('\n');
        }
        match stream.write_all(piece.as_bytes()).and_then(|()| stream.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Error::failed(format!("cannot write the output: {error}"))),
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
