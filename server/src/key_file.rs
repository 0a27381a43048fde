//! The file of API keys (`--api-keys`).

use std::path::Path;

use serde::{Deserialize, Deserializer};
use toml::Spanned;
use trail_cli::Error;
use trail_platform::read::read_text;

use crate::number::{Priority, Whole};
use crate::secret::Secret;

/// Largest file, MiB.
const MAX_MIB: u64 = 4;

/// The file: `[[keys]]` tables.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    keys: Vec<Spanned<KeyEntry>>,
}

/// One key of the file.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyEntry {
    /// Name of its holder, for the access log.
    pub name: String,
    #[serde(deserialize_with = "secret")]
    pub key: Secret,
    /// Requests a minute; `None` for no limit.
    pub requests_per_minute: Option<Amount>,
    /// Tokens of prompts and answers a minute; `None` for no limit.
    pub tokens_per_minute: Option<Amount>,
    /// The least `priority` of its requests; 0 if absent: none goes before others.
    pub least_priority: Option<Priority>,
}

/// An amount of a limit.
pub(crate) type Amount = Whole<1, { u32::MAX as i64 }>;

/// A message about a value that is no key must not show it.
fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    let text = match toml::Value::deserialize(deserializer)? {
        toml::Value::String(text) => text,
        _ => return Err(serde::de::Error::custom("a key is a string")),
    };
    Secret::new(&text).map_err(serde::de::Error::custom)
}

/// Reads the keys of `path`. An error names the line, and shows no key.
pub(crate) fn read(path: &Path) -> Result<Vec<KeyEntry>, Error> {
    let shown = path.display();
    let text = read_text(path, MAX_MIB)
        .map_err(|error| Error::usage(format!("cannot read {shown}: {error}")))?;
    parse(&text).map_err(|(at, why)| {
        let line = text[..at.min(text.len())].matches('\n').count() + 1;
        Error::usage(format!("{shown}, line {line}: {why}"))
    })
}

/// The keys of a file's text, or the position of a fault and its description.
fn parse(text: &str) -> Result<Vec<KeyEntry>, (usize, String)> {
    let file: KeyFile = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        (at, error.message().lines().collect::<Vec<_>>().join(" "))
    })?;
    if file.keys.is_empty() {
        return Err((0, "there is no key: write [[keys]] with a name and a key".into()));
    }
    let mut entries: Vec<KeyEntry> = Vec::with_capacity(file.keys.len());
    for entry in file.keys {
        let (at, entry) = (entry.span().start, entry.into_inner());
        let is_printable = |c: char| !c.is_control() && !c.is_whitespace();
        if entry.name.is_empty() || !entry.name.chars().all(is_printable) {
            return Err((at, "a name has one character at least, and no spaces".into()));
        }
        if entries.iter().any(|other| other.name == entry.name) {
            return Err((at, format!("there are two keys named '{}'", entry.name)));
        }
        if let Some(other) = entries.iter().find(|other| other.key == entry.key) {
            return Err((at, format!("'{}' and '{}' have one key", other.name, entry.name)));
        }
        entries.push(entry);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names_and_limits() {
        let text = "[[keys]]\nname = \"a\"\nkey = \"sk-1\"\n\n\
                    [[keys]]\nname = \"b\"\nkey = \"sk-2\"\nrequests_per_minute = 5\n";
        let keys = parse(text).expect("keys");
        assert_eq!((keys[0].name.as_str(), keys[1].name.as_str()), ("a", "b"));
        let limit = |key: &KeyEntry| key.requests_per_minute.map(i64::from);
        assert_eq!((limit(&keys[0]), limit(&keys[1])), (None, Some(5)));
        assert!(keys[1].key.hash().is(&Secret::new("sk-2").expect("a key").hash()));
        assert!(!keys[1].key.hash().is(&keys[0].key.hash()));
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_without_the_key() {
        let entry = |fields: &str| format!("\n[[keys]]\nname = \"a\"\n{fields}");
        for (text, line, says) in [
            (entry("key = \"hush\"\nwieght = 2"), 5, "unknown field `wieght`"),
            (entry("key = 123450"), 4, "a key is a string"),
            (entry("key = \"two 123450\""), 4, "no spaces"),
            (entry(""), 2, "missing field `key`"),
            (entry("key = \"hush\"\ntokens_per_minute = -1"), 5, "a whole number from 1 to"),
            (entry("key = \"hush\"\ntokens_per_minute = 0"), 5, "a whole number from 1 to"),
            (entry("key = \"hush\"") + &entry("key = \"b\""), 5, "two keys named 'a'"),
            (entry("key = \"hush\"") + "\n[[keys]]\nname = \"b\"\nkey = \"hush\"", 5, "one key"),
            ("[[keys]]\nname = \"a b\"\nkey = \"hush\"".into(), 1, "no spaces"),
            ("other = 1".into(), 1, "unknown field `other`"),
            (String::new(), 1, "there is no key"),
        ] {
            let (at, why) = parse(&text).map(drop).expect_err(&text);
            assert!(why.contains(says) && !why.contains('\n'), "{text}: {why}");
            assert_eq!(text[..at].matches('\n').count() + 1, line, "{text}: {why}");
            assert!(!why.contains("hush") && !why.contains("123450"), "{why}");
        }
    }
}
