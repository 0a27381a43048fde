//! Numbers of a request's fields, in JSON's terms: `1.0` is a whole number.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole<const MIN: i64, const MAX: i64>(i64);

/// A number of tokens, or the id of one.
pub(crate) type Count = Whole<0, { u32::MAX as i64 }>;

/// A number of most likely tokens; -1 for all.
pub(crate) type TopK = Whole<-1, { i64::MAX }>;

/// A priority of the scheduler.
pub(crate) type Priority = Whole<-127, 127>;

/// A whole number of 64 bits.
pub(crate) type Int64 = Whole<{ i64::MIN }, { i64::MAX }>;

/// A number of most likely tokens.
pub(crate) type TopLogprobs = Whole<0, 20>;

impl TopLogprobs {
    /// The number.
    pub(crate) fn get(self) -> u8 {
        // In range by construction.
        self.0 as u8
    }
}

impl Count {
    /// The number.
    pub(crate) fn get(self) -> u32 {
        // In range by construction.
        self.0 as u32
    }
}

impl<const MIN: i64, const MAX: i64> From<Whole<MIN, MAX>> for i64 {
    fn from(whole: Whole<MIN, MAX>) -> i64 {
        whole.0
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor(MIN..=MAX)).map(Whole)
    }
}

struct WholeVisitor(RangeInclusive<i64>);

impl Visitor<'_> for WholeVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match (*self.0.start(), *self.0.end()) {
            (i64::MIN, i64::MAX) => f.write_str("a whole number of at most 64 bits"),
            (least, i64::MAX) => write!(f, "a whole number that is at least {least}"),
            (least, max) => write!(f, "a whole number from {least} to {max}"),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<i64, E> {
        match self.0.contains(&value) {
            true => Ok(value),
            false => Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<i64, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<i64, E> {
        // Floats of this size and larger have no fraction, and not every whole number.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match value.fract() == 0.0 && value.abs() < EXACT && self.0.contains(&(value as i64)) {
            true => Ok(value as i64),
            false => Err(E::invalid_value(Unexpected::Float(value), &self)),
        }
    }
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Real(pub f32);

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RealVisitor)
    }
}

struct RealVisitor;

impl Visitor<'_> for RealVisitor {
    type Value = Real;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Real, E> {
        Ok(Real(value as f32))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Real, E> {
        Ok(Real(value as f32))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Real, E> {
        Ok(Real(value as f32))
    }
}

/// The first integer of a JSON text that has more than 64 bits. A parser would make it a float,
/// which is another number. The text may be malformed: its parser says so.
pub(crate) fn integer_beyond_64_bits(json: &[u8]) -> Option<&str> {
    let mut rest = json;
    while let Some((&first, after)) = rest.split_first() {
        rest = match first {
            b'"' => after_string(after),
            b'-' | b'0'..=b'9' => {
                let is_part =
                    |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let length = rest.iter().take_while(|byte| is_part(byte)).count();
                let (token, after) = rest.split_at(length);
                let token = std::str::from_utf8(token).unwrap_or_default();
                if is_integer(token)
                    && token.parse::<i64>().is_err()
                    && token.parse::<u64>().is_err()
                {
                    return Some(token);
                }
                after
            }
            _ => after,
        };
    }
    None
}

/// The text behind the string that has begun.
fn after_string(mut rest: &[u8]) -> &[u8] {
    loop {
        match rest {
            [b'\\', _, after @ ..] => rest = after,
            [b'"', after @ ..] => return after,
            [_, after @ ..] => rest = after,
            [] => return rest,
        }
    }
}

fn is_integer(token: &str) -> bool {
    let digits = token.strip_prefix('-').unwrap_or(token);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_floats_are_whole_numbers() {
        let read = |text| serde_json::from_str::<Whole<-1, 200>>(text).map(i64::from);
        for (text, value) in [("1.0", 1), ("1e2", 100), ("-1", -1), ("200", 200), ("-0.0", 0)] {
            assert_eq!(read(text).expect(text), value);
        }
        for text in ["1.5", "201", "-2", "1e300", "18446744073709551616", "\"1\"", "true", "[]"] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("expected a whole number from -1 to 200"), "{error}");
        }
    }

    #[test]
    fn integers_beyond_64_bits_are_found_outside_of_strings() {
        for text in [
            "18446744073709551615",
            "-9223372036854775808",
            "1e30",
            "18446744073709551616.0",
            r#""18446744073709551616""#,
            r#""\"18446744073709551616""#,
            "",
            "\"",
            "-",
        ] {
            assert_eq!(integer_beyond_64_bits(text.as_bytes()), None, "{text}");
        }
        for (text, found) in [
            ("[1, 18446744073709551616]", "18446744073709551616"),
            (r#"{"a\"": -9223372036854775809}"#, "-9223372036854775809"),
        ] {
            assert_eq!(integer_beyond_64_bits(text.as_bytes()), Some(found));
        }
    }
}
