//! Limits of a chat template that hold with any minijinja: instructions, depth (its own limit of
//! recursion), source and output.

use std::io;

use minijinja::{Environment, Error, ErrorKind, Value};

use super::allowance::{MAX_BYTES, over};

/// Bytes of a template's source. The longest in use has 20 KB; the parser's recursion over a longer
/// one could pass the end of the stack.
const MAX_SOURCE: usize = 64 << 10;
/// Instructions of one rendering: more than a context of 128 Ki tokens takes as short messages.
const MAX_INSTRUCTIONS: u64 = 5_000_000;

/// Sets the limit of instructions, and fails for a source that is too long.
pub(super) fn install(environment: &mut Environment, source: &str) -> Result<(), Error> {
    if source.len() > MAX_SOURCE {
        let why = format!("{} bytes of source, more than {MAX_SOURCE}", source.len());
        return Err(Error::new(ErrorKind::SyntaxError, why));
    }
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    Ok(())
}

/// Renders the template `name`.
#[cfg_attr(feature = "template-metering", allow(dead_code))]
pub(super) fn render(
    environment: &Environment<'static>,
    name: &str,
    root: Value,
) -> Result<String, Error> {
    let mut output = BoundedText::default();
    let rendered = environment.get_template(name)?.render_captured_to(root, &mut output);
    output.finish(rendered)
}

/// A text that is full at [`MAX_BYTES`].
#[derive(Default)]
pub(super) struct BoundedText(Vec<u8>);

impl BoundedText {
    /// The text, if it was `written`; an error about the limit if it is full.
    pub(super) fn finish<T>(self, written: Result<T, Error>) -> Result<String, Error> {
        written.map_err(|error| match self.0.len() < MAX_BYTES {
            true => error,
            false => over(format!("{} MiB of text", MAX_BYTES >> 20)),
        })?;
        String::from_utf8(self.0).map_err(|_| Error::new(ErrorKind::WriteFailure, "no UTF-8"))
    }
}

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(MAX_BYTES - self.0.len());
        self.0.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The limit that `error` is about, if it is about one.
pub(super) fn exceeded(error: &Error) -> Option<String> {
    let instructions = || format!("{MAX_INSTRUCTIONS} instructions");
    let is_limit = error.kind() == ErrorKind::OutOfFuel;
    is_limit.then(|| error.detail().map_or_else(instructions, str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &'static str) -> Result<String, Error> {
        let mut environment = Environment::new();
        install(&mut environment, source)?;
        environment.add_template("t", source)?;
        render(&environment, "t", Value::UNDEFINED)
    }

    #[test]
    fn each_limit_is_named() {
        assert_eq!(rendered("{{ 1 + 1 }} tokens").unwrap(), "2 tokens");
        let long = " ".repeat(MAX_SOURCE + 1).leak();
        assert!(rendered(long).unwrap_err().to_string().contains("65537 bytes of source"));
        let endless =
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
        assert_eq!(exceeded(&rendered(endless).unwrap_err()).unwrap(), "5000000 instructions");
        let piece = "x".repeat(60_000);
        let text = format!("{{% for i in range(9999) %}}{piece}{{% endfor %}}").leak();
        assert_eq!(exceeded(&rendered(text).unwrap_err()).unwrap(), "64 MiB of text");
        let deep = "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}";
        assert!(rendered(deep).unwrap_err().to_string().contains("recursion"));
    }
}
