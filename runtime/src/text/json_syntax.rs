//! A check of JSON's syntax.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Any JSON value, parsed in full (strings and numbers too) and dropped.
struct Parsed;

/// Returns the first error of `bytes` as JSON. The tokenizers crate panics on such an error within
/// a normalizer, pre-tokenizer or decoder.
pub(super) fn check(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Parsed>(bytes).map(drop)
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
        deserializer.deserialize_any(Parsed)
    }
}

impl<'de> Visitor<'de> for Parsed {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Parsed, E> {
        Ok(Parsed)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Parsed, E> {
        Ok(Parsed)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Parsed, E> {
        Ok(Parsed)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Parsed, E> {
        Ok(Parsed)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Parsed, E> {
        Ok(Parsed)
    }

    fn visit_str<E>(self, _: &str) -> Result<Parsed, E> {
        Ok(Parsed)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Parsed, A::Error> {
        while let Some(Parsed) = items.next_element()? {}
        Ok(Parsed)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Parsed, A::Error> {
        while let Some((Parsed, Parsed)) = entries.next_entry()? {}
        Ok(Parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_parsed_in_full() {
        let whole = br#" {"a": [1, -2, 3.5, true, null, "\ud83d\ude00\n"], "": {}} "#;
        assert!(check(whole).is_ok());
        for wrong in [
            &b"{\"a\": \"\xec\x84\"}"[..],
            br#"["\ud800"]"#,
            b"[1e999]",
            b"{\"a\" 1}",
            b"[1] 2",
            b"[\"\x01\"]",
            b"",
        ] {
            assert!(check(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
