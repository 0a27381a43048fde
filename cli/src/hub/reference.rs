//! Names of models on the hub: `OWNER/NAME` or `OWNER/NAME:FILE`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Longest owner or name, as on the hub.
const MAX_NAME: usize = 96;

/// A model on the hub, or one of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubReference {
    /// `OWNER/NAME`.
    pub repository: String,
    /// A file of the repository, with `/` between folders.
    pub file: Option<String>,
}

impl HubReference {
    /// The reference in a model path `hf:OWNER/NAME[:FILE]`; `None` for a path of another form.
    pub fn of_path(path: &Path) -> Option<Result<HubReference, String>> {
        Some(path.to_str()?.strip_prefix("hf:")?.parse())
    }
}

impl FromStr for HubReference {
    type Err = String;

    fn from_str(text: &str) -> Result<HubReference, String> {
        let text = text.strip_prefix("hf:").unwrap_or(text);
        let (repository, file) = match text.split_once(':') {
            Some((repository, file)) => (repository, Some(file)),
            None => (text, None),
        };
        let named = repository.split_once('/');
        if !named.is_some_and(|(owner, name)| is_name(owner) && is_name(name)) {
            return Err(format!(
                "{text:?} names no model of the hub: expected OWNER/NAME or OWNER/NAME:FILE"
            ));
        }
        match file {
            Some(file) if !is_file(file) => Err(format!(
                "{file:?} is no file of a repository: expected a path such as model.gguf"
            )),
            file => {
                Ok(HubReference { repository: repository.into(), file: file.map(str::to_owned) })
            }
        }
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

/// True for a part of a repository's name. It becomes a part of a path and of an address.
fn is_name(text: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(is_valid)
        && !text.starts_with('.')
        && !text.contains("--")
        && !text.contains("..")
}

/// True for a path below a folder whose characters need no escape in an address.
pub(super) fn is_file(text: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.+=@/".contains(c);
    text.chars().all(is_valid) && !text.split('/').any(|part| ["", ".", ".."].contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_paths_out_of_the_cache_are_refused() {
        let read = |text: &str| text.parse::<HubReference>();
        let model = |repository: &str, file: Option<&str>| {
            Ok(HubReference { repository: repository.into(), file: file.map(Into::into) })
        };
        assert_eq!(read("a-b/C.1_x"), model("a-b/C.1_x", None));
        assert_eq!(
            read("a/b:q4/m-00001-of-00002.gguf"),
            model("a/b", Some("q4/m-00001-of-00002.gguf"))
        );
        for text in [
            "",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a/b:",
            "a/b:../c",
            "a/b:/c",
            "a/b:c//d",
            "a/b:c?d",
            "a/b c",
            "a/b:.",
            "a/b:c/./d:e",
            "a/b:c/./d",
            "a/b:c/.",
            "a/b:c/../d",
            "a\n/b",
            "a/b--c",
            "a/b:c\\d",
        ] {
            let error = read(text).expect_err(text);
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert_eq!(read("a/b:c").map(|name| name.to_string()), Ok("a/b:c".into()));
        assert!(HubReference::of_path(Path::new("models/hf:a")).is_none());
        assert!(HubReference::of_path(Path::new("hf:a/b")).is_some_and(|name| name.is_ok()));
    }
}
