//! The environment variables of the hub's own tools: cache, token and address.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use hf_hub::Cache;

use crate::error::Error;

/// Seconds without a byte after which a server has stalled, and the most that can be set.
const STALL_S: f64 = 30.0;
const MAX_STALL_S: f64 = 86_400.0;

/// Settings from the environment.
pub(super) struct Environment {
    /// The cache: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in `~/.cache/huggingface`.
    pub(super) cache: Cache,
    /// `HF_TOKEN`, else the token of `hf auth login`.
    pub(super) token: Option<String>,
    /// `HF_ENDPOINT`, without a slash at the end.
    pub(super) endpoint: String,
    /// `HF_HUB_OFFLINE`: no request is sent.
    pub(super) is_offline: bool,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`, seconds: longest wait for a byte.
    pub(super) stall: Duration,
}

impl Environment {
    /// Reads the variables of this process.
    pub(super) fn read() -> Result<Environment, Error> {
        Environment::from(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Environment, Error> {
        let below = |name: &str, folder: &str| Some(PathBuf::from(variable(name)?).join(folder));
        let home = below("HF_HOME", "")
            .or_else(|| below("XDG_CACHE_HOME", "huggingface"))
            .or_else(|| below("HOME", ".cache/huggingface"))
            // Windows.
            .or_else(|| below("USERPROFILE", ".cache/huggingface"));
        let hub = below("HF_HUB_CACHE", "").or_else(|| Some(home.as_ref()?.join("hub")));
        let Some(hub) = hub else {
            return Err(Error::failed("there is no home folder for the models: set HF_HOME"));
        };
        let text = |name: &str| {
            let text = variable(name)?.to_string_lossy().trim().to_owned();
            Some(text).filter(|text| !text.is_empty())
        };
        let login = || Cache::new(home?.join("hub")).token();
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err(Error::usage(format!(
                "HF_ENDPOINT is {endpoint:?}: expected an address such as https://huggingface.co"
            )));
        }
        let stall = match text("HF_HUB_DOWNLOAD_TIMEOUT") {
            None => STALL_S,
            Some(text) => match text.parse() {
                Ok(seconds) if (0.1..=MAX_STALL_S).contains(&seconds) => seconds,
                _ => {
                    return Err(Error::usage(format!(
                        "HF_HUB_DOWNLOAD_TIMEOUT is {text:?}: expected seconds, 0.1 to {MAX_STALL_S}"
                    )));
                }
            },
        };
        Ok(Environment {
            stall: Duration::from_secs_f64(stall),
            cache: Cache::new(hub),
            token: text("HF_TOKEN").or_else(login),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            is_offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
        })
    }
}

/// True for the values that huggingface_hub takes as true.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Environment, Error> {
        Environment::from(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_variables_of_huggingface_hub_are_honoured() {
        let cache = |variables: &[(&str, &str)]| {
            of(variables).map(|environment| environment.cache.path().display().to_string())
        };
        let variables = [
            ("HF_HUB_CACHE", "/a"),
            ("HF_HOME", "/b"),
            ("XDG_CACHE_HOME", "/c"),
            ("HOME", "/d"),
            ("USERPROFILE", "/e"),
        ];
        let expected = [
            "/a/",
            "/b/hub",
            "/c/huggingface/hub",
            "/d/.cache/huggingface/hub",
            "/e/.cache/huggingface/hub",
        ];
        for (first, expected) in expected.iter().enumerate() {
            assert_eq!(cache(&variables[first..]).as_deref(), Ok(*expected));
        }
        assert_eq!(cache(&[]).map_err(|error| error.code()), Err(1));
        let with = |name, value| of(&[("HOME", "/nonexistent"), (name, value)]);
        let endpoint = |value| with("HF_ENDPOINT", value).map(|found| found.endpoint);
        assert_eq!(endpoint("http://[::1]:9/"), Ok("http://[::1]:9".into()));
        assert_eq!(endpoint("hub").map_err(|error| error.code()), Err(2));
        let stall = |value| with("HF_HUB_DOWNLOAD_TIMEOUT", value).map(|found| found.stall);
        assert_eq!(
            (stall(""), stall("2.5")),
            (Ok(Duration::from_secs(30)), Ok(Duration::from_millis(2500)))
        );
        for value in ["0", "-1", "1e9", "NaN", "soon"] {
            assert_eq!(stall(value).map_err(|error| error.code()), Err(2), "{value}");
        }
        assert_eq!(with("HF_TOKEN", " t\n").expect("a cache").token.as_deref(), Some("t"));
        assert_eq!(with("HF_TOKEN", " \n").expect("a cache").token, None);
        for (value, is_offline) in [("1", true), ("TRUE", true), ("0", false)] {
            assert_eq!(with("HF_HUB_OFFLINE", value).expect("a cache").is_offline, is_offline);
        }
    }
}
