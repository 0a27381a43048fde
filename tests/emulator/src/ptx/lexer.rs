//! PTX text to tokens. Directives whose line carries nothing we execute (`.loc`, `.file`, ...) are
//! dropped here.

use super::PtxError;

/// One token and the line it stands on (from 1).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: u32,
}

/// Kind of a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Identifier, directive (`.reg`), opcode with its suffixes
    /// (`ld.global.L1::no_allocate.v4.b32`), register or label name.
    Word(String),
    /// Integer literal, as its 64 bits.
    Int(u64),
    /// `0f` or `0d` literal, or a decimal float: the bits of the f64, and of the f32 when it was
    /// written as one.
    Float { bits64: u64, bits32: u32 },
    /// Quoted text.
    Text(String),
    /// Punctuation.
    Punct(char),
}

/// Directives dropped up to the end of their line.
const SKIPPED: [&str; 5] = [".loc", ".file", ".version", ".target", ".address_size"];

/// Splits PTX text.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, PtxError> {
    Lexer { bytes: text.as_bytes(), at: 0, line: 1, out: Vec::with_capacity(text.len() / 4) }.run()
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u32,
    out: Vec<Token>,
}

impl Lexer<'_> {
    fn run(mut self) -> Result<Vec<Token>, PtxError> {
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                0 => break,
                _ if byte.is_ascii_whitespace() => self.at += 1,
                b'/' => self.comment()?,
                b'"' => self.text()?,
                b'0'..=b'9' => self.number()?,
                _ if is_start(byte) => self.word(),
                b',' | b';' | b':' | b'[' | b']' | b'{' | b'}' | b'(' | b')' | b'<' | b'>'
                | b'+' | b'-' | b'!' | b'|' | b'@' | b'=' | b'*' => {
                    self.push(Kind::Punct(byte as char));
                    self.at += 1;
                }
                _ => {
                    return Err(PtxError::at(
                        self.line,
                        format!("unexpected character {:?}", byte as char),
                    ));
                }
            }
        }
        Ok(self.out)
    }

    fn push(&mut self, kind: Kind) {
        self.out.push(Token { kind, line: self.line });
    }

    fn comment(&mut self) -> Result<(), PtxError> {
        match self.bytes.get(self.at + 1) {
            Some(b'/') => self.skip_line(),
            Some(b'*') => {
                let start = self.line;
                self.at += 2;
                while !self.bytes[self.at..].starts_with(b"*/") {
                    match self.bytes.get(self.at) {
                        None => return Err(PtxError::at(start, "comment without end")),
                        Some(b'\n') => self.line += 1,
                        Some(_) => {}
                    }
                    self.at += 1;
                }
                self.at += 2;
            }
            _ => return Err(PtxError::at(self.line, "unexpected character '/'")),
        }
        Ok(())
    }

    fn skip_line(&mut self) {
        while self.bytes.get(self.at).is_some_and(|&byte| byte != b'\n') {
            self.at += 1;
        }
    }

    fn text(&mut self) -> Result<(), PtxError> {
        let start = self.at + 1;
        let length = self.bytes[start..].iter().position(|&byte| byte == b'"');
        let length = length.ok_or_else(|| PtxError::at(self.line, "text without closing quote"))?;
        let text = String::from_utf8_lossy(&self.bytes[start..start + length]).into_owned();
        self.push(Kind::Text(text));
        self.at = start + length + 1;
        Ok(())
    }

    fn word(&mut self) {
        let start = self.at;
        self.at += 1;
        while let Some(&byte) = self.bytes.get(self.at) {
            // `L1::no_allocate` is one word; a label's colon is not part of it.
            let doubled = byte == b':' && self.bytes.get(self.at + 1) == Some(&b':');
            if doubled {
                self.at += 2;
            } else if is_start(byte) || byte.is_ascii_digit() {
                self.at += 1;
            } else {
                break;
            }
        }
        let word = String::from_utf8_lossy(&self.bytes[start..self.at]).into_owned();
        if SKIPPED.contains(&word.as_str()) {
            self.skip_line();
        } else {
            self.push(Kind::Word(word));
        }
    }

    fn number(&mut self) -> Result<(), PtxError> {
        let start = self.at;
        while let Some(&byte) = self.bytes.get(self.at) {
            let exponent = (byte == b'+' || byte == b'-')
                && matches!(self.bytes[self.at - 1], b'e' | b'E')
                && !self.bytes[start..].starts_with(b"0x")
                && self.bytes[start..self.at].contains(&b'.');
            if byte.is_ascii_alphanumeric() || byte == b'.' || exponent {
                self.at += 1;
            } else {
                break;
            }
        }
        let digits = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or("");
        let kind = number(digits)
            .ok_or_else(|| PtxError::at(self.line, format!("bad number `{digits}`")))?;
        self.push(kind);
        Ok(())
    }
}

fn is_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn number(digits: &str) -> Option<Kind> {
    let prefix = digits.get(..2).unwrap_or("");
    let rest = digits.get(2..).unwrap_or("");
    if matches!(prefix, "0f" | "0F") && rest.len() == 8 {
        let bits32 = u32::from_str_radix(rest, 16).ok()?;
        let bits64 = f64::from(f32::from_bits(bits32)).to_bits();
        return Some(Kind::Float { bits64, bits32 });
    }
    if matches!(prefix, "0d" | "0D") && rest.len() == 16 {
        let bits64 = u64::from_str_radix(rest, 16).ok()?;
        return Some(Kind::Float { bits64, bits32: (f64::from_bits(bits64) as f32).to_bits() });
    }
    let plain = digits.trim_end_matches(['U', 'u']);
    if matches!(prefix, "0x" | "0X") {
        return u64::from_str_radix(plain.get(2..)?, 16).ok().map(Kind::Int);
    }
    if digits.contains('.') {
        let value: f64 = digits.parse().ok()?;
        return Some(Kind::Float { bits64: value.to_bits(), bits32: (value as f32).to_bits() });
    }
    if plain.len() > 1 && plain.starts_with('0') {
        return u64::from_str_radix(plain, 8).ok().map(Kind::Int);
    }
    plain.parse().ok().map(Kind::Int)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        tokens(text).unwrap().into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn opcodes_labels_and_numbers() {
        assert_eq!(
            kinds("$L0: ld.global.L1::no_allocate.f32 %f1, [%rd1+-8]; // end"),
            [
                Kind::Word("$L0".into()),
                Kind::Punct(':'),
                Kind::Word("ld.global.L1::no_allocate.f32".into()),
                Kind::Word("%f1".into()),
                Kind::Punct(','),
                Kind::Punct('['),
                Kind::Word("%rd1".into()),
                Kind::Punct('+'),
                Kind::Punct('-'),
                Kind::Int(8),
                Kind::Punct(']'),
                Kind::Punct(';'),
            ]
        );
        assert_eq!(
            kinds("0x8000U 017 0f3F800000"),
            [
                Kind::Int(0x8000),
                Kind::Int(15),
                Kind::Float { bits64: 1f64.to_bits(), bits32: 1f32.to_bits() }
            ]
        );
    }

    #[test]
    fn lines_are_counted_and_skipped_directives_dropped() {
        let all = tokens(".version 8.4\n/* a\nb */ ret").unwrap();
        assert_eq!(all, [Token { kind: Kind::Word("ret".into()), line: 3 }]);
        assert!(tokens("\n#").unwrap_err().to_string().contains("line 2"));
    }
}
