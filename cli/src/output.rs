//! Stdout that tolerates a closed pipe, and keeps control characters from a terminal.

use std::io::{ErrorKind, IsTerminal, Write};

use trail_platform::printable;

use crate::error::Error;

/// Stdout, or stderr or nothing where a JSON object is printed on stdout at the end.
///
/// A terminal gets the text of a model or a file as [`printable()`]; a pipe or a file, as it is.
pub struct Output {
    stream: Option<Box<dyn Write>>,
    is_terminal: bool,
    /// True if the last piece did not end in a line break.
    open_line: bool,
}

impl Output {
    /// An output to stdout, flushed after each piece.
    pub fn stdout() -> Self {
        let stdout = std::io::stdout().lock();
        Output::to(stdout.is_terminal(), stdout)
    }

    /// An output to stderr.
    pub fn stderr() -> Self {
        let stderr = std::io::stderr();
        Output::to(stderr.is_terminal(), stderr)
    }

    /// An output that discards everything.
    pub fn silent() -> Self {
        Output { stream: None, is_terminal: false, open_line: false }
    }

    fn to(is_terminal: bool, stream: impl Write + 'static) -> Self {
        Output { stream: Some(Box::new(stream)), is_terminal, open_line: false }
    }

    /// Writes a piece. Returns false once the reader has closed the pipe, which is no error.
    pub fn write(&mut self, piece: &str) -> Result<bool, Error> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        if !piece.is_empty() {
            self.open_line = !piece.ends_with('\n');
        }
        let piece = if self.is_terminal { printable(piece) } else { piece.into() };
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Pieces(Sender<Vec<u8>>);

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(std::io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_terminal_gets_no_control_characters_and_a_pipe_gets_the_text() {
        for (is_terminal, expected) in [(true, "a\n\tb\\u{1b}[2J\n"), (false, "a\n\tb\u{1b}[2J\n")]
        {
            let (sender, pieces) = channel();
            let mut output = Output::to(is_terminal, Pieces(sender));
            output.write("a\n\tb").and_then(|_| output.line("\u{1b}[2J")).expect("written");
            drop(output);
            assert_eq!(pieces.iter().flatten().collect::<Vec<u8>>(), expected.as_bytes());
        }
    }
}
