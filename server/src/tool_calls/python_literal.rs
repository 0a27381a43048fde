//! Python's literals as JSON: the arguments of calls.

use super::cursor::{Cursor, Stop};

/// Deepest nesting of lists and dicts.
const MAX_DEPTH: usize = 64;

impl Cursor<'_> {
    /// The arguments of a call whose bracket is open, as a JSON object.
    pub(super) fn keyword_arguments(&mut self) -> Result<String, Stop> {
        let mut json = String::from("{");
        let mut names = Vec::new();
        self.items(')', &mut json, |cursor, json| {
            let name = cursor.word(|byte| byte.is_ascii_alphanumeric() || byte == b'_')?;
            if name.is_empty() || names.contains(&name.to_owned()) {
                return Err(Stop::No);
            }
            names.push(name.to_owned());
            cursor.space();
            cursor.literal("=")?;
            json.extend(["\"", name, "\": "]);
            cursor.space();
            cursor.literal_value(json, 0)
        })?;
        json.push('}');
        Ok(json)
    }

    /// Items up to `close`, with commas between.
    fn items(
        &mut self,
        close: char,
        json: &mut String,
        mut item: impl FnMut(&mut Self, &mut String) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let mut is_first = true;
        loop {
            self.space();
            if self.peek()? == close as u8 {
                self.next()?;
                return Ok(());
            }
            if !std::mem::replace(&mut is_first, false) {
                json.push_str(", ");
            }
            item(self, json)?;
            self.space();
            match self.next()? {
                ',' => {}
                next if next == close => return Ok(()),
                _ => return Err(Stop::No),
            }
        }
    }

    fn literal_value(&mut self, json: &mut String, depth: usize) -> Result<(), Stop> {
        if depth > MAX_DEPTH {
            return Err(Stop::No);
        }
        match self.peek()? {
            b'"' | b'\'' => {
                let text = self.python_string()?;
                json.push_str(&serde_json::Value::from(text).to_string());
                Ok(())
            }
            open @ (b'[' | b'(') => {
                self.next()?;
                json.push('[');
                let close = if open == b'[' { ']' } else { ')' };
                self.items(close, json, |cursor, json| cursor.literal_value(json, depth + 1))?;
                json.push(']');
                Ok(())
            }
            b'{' => {
                self.next()?;
                json.push('{');
                self.items('}', json, |cursor, json| {
                    let key = cursor.python_string()?;
                    json.push_str(&serde_json::Value::from(key).to_string());
                    cursor.space();
                    cursor.literal(":")?;
                    json.push_str(": ");
                    cursor.space();
                    cursor.literal_value(json, depth + 1)
                })?;
                json.push('}');
                Ok(())
            }
            _ => self.scalar(json),
        }
    }

    /// A number, or one of Python's names of constants.
    fn scalar(&mut self, json: &mut String) -> Result<(), Stop> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
        let word = match self.word(is_part)? {
            "True" | "true" => "true".to_owned(),
            "False" | "false" => "false".to_owned(),
            "None" | "null" => "null".to_owned(),
            number => json_number(number).ok_or(Stop::No)?,
        };
        json.push_str(&word);
        Ok(())
    }

    fn python_string(&mut self) -> Result<String, Stop> {
        let quote = match self.next()? {
            quote @ ('"' | '\'') => quote,
            _ => return Err(Stop::No),
        };
        let triple = [quote; 3].iter().collect::<String>();
        // Two quotes are an empty string, or begin a long one.
        if self.rest().len() < 2 && self.rest().chars().all(|next| next == quote) {
            return Err(Stop::More);
        }
        let end = match self.rest().starts_with(&triple[1..]) {
            true => {
                self.literal(&triple[1..])?;
                &triple
            }
            false => &triple[..1],
        };
        let mut text = String::new();
        loop {
            if self.rest().starts_with(end) {
                self.literal(end)?;
                return Ok(text);
            }
            match self.next()? {
                '\\' => self.escape(&mut text)?,
                next => text.push(next),
            }
        }
    }

    /// The character of an escape; one that Python does not know stays as it is.
    fn escape(&mut self, text: &mut String) -> Result<(), Stop> {
        let digits = match self.next()? {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            plain => {
                match plain {
                    '\n' => {}
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    '0' => text.push('\0'),
                    '\\' | '\'' | '"' => text.push(plain),
                    _ => text.extend(['\\', plain]),
                }
                return Ok(());
            }
        };
        let mut code = 0u32;
        for _ in 0..digits {
            let digit = self.next()?.to_digit(16).ok_or(Stop::No)?;
            code = code.checked_mul(16).ok_or(Stop::No)? | digit;
        }
        text.push(char::from_u32(code).ok_or(Stop::No)?);
        Ok(())
    }
}

/// A number of Python's in JSON: without `_` and a sign `+`, with digits on both sides of a point.
fn json_number(python: &str) -> Option<String> {
    let plain = python.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", plain),
    };
    let leading = if digits.starts_with('.') { "0" } else { "" };
    let mut number = format!("{sign}{leading}{digits}");
    let mantissa = number.find(['e', 'E']).unwrap_or(number.len());
    if number[..mantissa].ends_with('.') {
        number.insert(mantissa, '0');
    }
    serde_json::from_str::<serde_json::Number>(&number).is_ok().then_some(number)
}
