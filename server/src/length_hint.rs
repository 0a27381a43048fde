//! The client's estimate of an answer's length: `nvext.agent_hints.osl`, NVIDIA Dynamo's name.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// The estimate in a request's `nvext`. Whatever else `nvext` holds, in any form, is read past and
/// never built: its size is the client's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum LengthHint {
    /// There is none.
    #[default]
    Absent,
    /// Output tokens.
    Tokens(u32),
    /// Not a number of tokens.
    Malformed,
}

/// The members that lead from `nvext` to the estimate.
const PATH: &[&str] = &["agent_hints", "osl"];

impl<'de> Deserialize<'de> for LengthHint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Below(PATH).deserialize(deserializer)
    }
}

/// A value that many members above the estimate; the estimate itself at the end of the path.
struct Below(&'static [&'static str]);

impl Below {
    /// Of a value that has no members.
    fn scalar(&self, tokens: Option<u32>) -> LengthHint {
        match self.0.is_empty() {
            true => tokens.map_or(LengthHint::Malformed, LengthHint::Tokens),
            false => LengthHint::Absent,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Below {
    type Value = LengthHint;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<LengthHint, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Below {
    type Value = LengthHint;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<LengthHint, A::Error> {
        let mut found = self.scalar(None);
        while let Some(name) = members.next_key::<String>()? {
            match self.0.split_first() {
                Some((first, rest)) if name == *first => {
                    found = members.next_value_seed(Below(rest))?;
                }
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<LengthHint, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self.scalar(None))
    }

    fn visit_u64<E: Error>(self, tokens: u64) -> Result<LengthHint, E> {
        Ok(self.scalar(u32::try_from(tokens).ok()))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<LengthHint, E> {
        Ok(self.scalar(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<LengthHint, E> {
        Ok(self.scalar(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<LengthHint, E> {
        Ok(self.scalar(None))
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<LengthHint, E> {
        Ok(self.scalar(None))
    }

    fn visit_unit<E: Error>(self) -> Result<LengthHint, E> {
        Ok(LengthHint::Absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_found_and_all_else_passed_over() {
        use LengthHint::{Absent, Malformed, Tokens};
        for (nvext, expected) in [
            (r#"{"agent_hints":{"osl":12}}"#, Tokens(12)),
            (r#"{"a":[{"osl":1}],"agent_hints":{"x":{"osl":2},"osl":0},"b":null}"#, Tokens(0)),
            (r#"{"agent_hints":{"osl":null}}"#, Absent),
            (r#"{"agent_hints":{"osl":12.5}}"#, Malformed),
            (r#"{"agent_hints":{"osl":-1}}"#, Malformed),
            (r#"{"agent_hints":{"osl":4294967296}}"#, Malformed),
            (r#"{"agent_hints":{"osl":"12"}}"#, Malformed),
            (r#"{"agent_hints":{"osl":true}}"#, Malformed),
            (r#"{"agent_hints":{"osl":[1]}}"#, Malformed),
            (r#"{"agent_hints":{"osl":{"osl":1}}}"#, Malformed),
            (r#"{"agent_hints":7}"#, Absent),
            (r#"{"osl":7}"#, Absent),
            (r#"[{"agent_hints":{"osl":7}}]"#, Absent),
            (r#""osl""#, Absent),
            ("null", Absent),
        ] {
            assert_eq!(serde_json::from_str::<LengthHint>(nvext).unwrap(), expected, "{nvext}");
        }
        assert!(serde_json::from_str::<LengthHint>(r#"{"agent_hints":{"osl":1"#).is_err());
    }
}
