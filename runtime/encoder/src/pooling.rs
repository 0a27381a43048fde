//! The pooling that a folder of sentence-transformers names.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;
use trail_platform::read::read_up_to;
use trail_probe::predictor::Pooling;

use crate::error::EncoderError;

/// The file, below the encoder's folder.
const FILE: &str = "1_Pooling/config.json";
/// Largest file, MiB.
const MAX_MIB: u64 = 1;

/// The pooling in `1_Pooling/config.json` of `folder`; the mean without that file.
///
/// # Errors
///
/// The file cannot be read, or names another pooling than that of the first token or the mean.
pub fn pooling_of(folder: &Path) -> Result<Pooling, EncoderError> {
    let file = folder.join(FILE);
    match read_up_to(&file, MAX_MIB) {
        Ok(bytes) => parse(&bytes).map_err(|why| EncoderError::of(&file, why)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Pooling::Mean),
        Err(error) => Err(EncoderError::of(&file, error.to_string())),
    }
}

fn parse(bytes: &[u8]) -> Result<Pooling, String> {
    let config: BTreeMap<String, Value> =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let modes = config
        .iter()
        .filter(|(name, value)| name.starts_with("pooling_mode_") && **value == Value::Bool(true));
    let modes: Vec<&str> = modes.map(|(name, _)| name.as_str()).collect();
    match modes[..] {
        ["pooling_mode_cls_token"] => Ok(Pooling::Cls),
        ["pooling_mode_mean_tokens"] => Ok(Pooling::Mean),
        _ => Err(format!(
            "the pooling is {modes:?}: either pooling_mode_cls_token or \
             pooling_mode_mean_tokens is supported"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_known_pooling_is_read() {
        for (text, expected) in [
            (
                r#"{"word_embedding_dimension": 4, "pooling_mode_cls_token": true}"#,
                Ok(Pooling::Cls),
            ),
            (
                r#"{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}"#,
                Ok(Pooling::Mean),
            ),
            (r#"{"pooling_mode_max_tokens": true}"#, Err("max_tokens")),
            (
                r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#,
                Err("either"),
            ),
            ("{}", Err("either")),
            ("[", Err("")),
        ] {
            match (parse(text.as_bytes()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(why), Err(says)) => assert!(why.contains(says), "{text}: {why}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        let nowhere = pooling_of(Path::new("/nowhere"));
        assert_eq!(nowhere.ok(), Some(Pooling::Mean), "no file");
    }
}
