//! The API keys of the server, replaced as a whole when their file is read again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use trail_cli::Error;

use crate::key_file::{self, Amount};
use crate::rate_limit::{Limits, RateLimit};
use crate::secret::{Secret, SecretHash};

/// Name of the key of `--api-key`.
const SINGLE: &str = "default";

/// A key, without its text.
pub(crate) struct ApiKey {
    /// Name of its holder.
    pub name: String,
    /// Hash of the key's text.
    pub hash: SecretHash,
    /// True if it may change the server: that of `--api-key`.
    pub is_admin: bool,
    /// The least `priority` of its requests; `None` for any.
    pub least_priority: Option<i32>,
    /// Requests and tokens that it may use.
    pub rate: Arc<RateLimit>,
}

/// All keys.
pub(crate) struct ApiKeys {
    single: Option<Arc<ApiKey>>,
    file: Option<PathBuf>,
    current: RwLock<Arc<[Arc<ApiKey>]>>,
}

impl ApiKeys {
    /// The key `single` and those of `file`; `None` if neither is given.
    pub(crate) fn open(
        single: Option<&Secret>,
        file: Option<PathBuf>,
    ) -> Result<Option<Self>, Error> {
        if single.is_none() && file.is_none() {
            return Ok(None);
        }
        let single = single.map(|key| {
            let rate = Arc::new(RateLimit::new(Limits::default()));
            let (name, hash) = (SINGLE.to_owned(), key.hash());
            Arc::new(ApiKey { name, hash, is_admin: true, least_priority: None, rate })
        });
        let keys = ApiKeys { single, file, current: RwLock::new(Arc::new([])) };
        keys.reload()?;
        Ok(Some(keys))
    }

    /// Reads the file again. On an error the present keys stay. Keys that keep their name keep what
    /// they have used of their limits. Returns the number of keys.
    pub(crate) fn reload(&self) -> Result<usize, Error> {
        let before = self.current();
        let entries = self.file.as_deref().map(key_file::read).transpose()?.unwrap_or_default();
        let of_file = entries.into_iter().map(|entry| {
            // In range by construction.
            let number = |amount: Amount| i64::from(amount) as u32;
            let limits = Limits {
                requests: entry.requests_per_minute.map(number),
                tokens: entry.tokens_per_minute.map(number),
            };
            let same = before.iter().find(|key| key.name == entry.name);
            let rate = same.map(|key| key.rate.clone()).filter(|rate| rate.limits() == limits);
            let rate = rate.unwrap_or_else(|| Arc::new(RateLimit::new(limits)));
            let (name, hash) = (entry.name, entry.key.hash());
            let least_priority = Some(entry.least_priority.map_or(0, |of| i64::from(of) as i32));
            Arc::new(ApiKey { name, hash, is_admin: false, least_priority, rate })
        });
        let keys: Arc<[_]> = self.single.iter().cloned().chain(of_file).collect();
        let count = keys.len();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(count)
    }

    /// The file of keys.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    fn current(&self) -> Arc<[Arc<ApiKey>]> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The key that a request presents as `Authorization: Bearer KEY` or as `x-api-key: KEY`.
    pub(crate) fn of_request(&self, headers: &HeaderMap) -> Option<Arc<ApiKey>> {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
        });
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        bearer.into_iter().chain(plain).find_map(|presented| self.find(presented))
    }

    /// Compares with every key, so that the time does not tell which one is near.
    fn find(&self, presented: &[u8]) -> Option<Arc<ApiKey>> {
        let (hash, keys) = (SecretHash::of(presented), self.current());
        keys.iter().fold(None, |found, key| match key.hash.is(&hash) {
            true => Some(key.clone()),
            false => found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(single: Option<&str>, file: Option<&Path>) -> ApiKeys {
        let single = single.map(|key| Secret::new(key).expect("a key"));
        let keys = ApiKeys::open(single.as_ref(), file.map(Path::to_owned)).expect("readable");
        keys.expect("keys")
    }

    fn name(keys: &ApiKeys, header: &'static str, value: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header, value.parse().expect("a value"));
        keys.of_request(&headers).map(|key| key.name.clone())
    }

    #[test]
    fn both_headers_are_read_and_other_keys_are_none() {
        let keys = keys(Some("sk-a"), None);
        for (header, value) in [
            ("authorization", "Bearer sk-a"),
            ("authorization", "bearer  sk-a "),
            ("x-api-key", "sk-a"),
        ] {
            assert_eq!(name(&keys, header, value).as_deref(), Some("default"), "{value}");
        }
        for (header, value) in [
            ("authorization", "sk-a"),
            ("authorization", "Basic sk-a"),
            ("authorization", "Bearer"),
            ("authorization", "Bearer sk-"),
            ("authorization", "Bearer sk-ab"),
            ("x-api-key", ""),
            ("x-api-key", "Bearer sk-a"),
            ("other", "sk-a"),
        ] {
            assert_eq!(name(&keys, header, value), None, "{value}");
        }
        assert!(ApiKeys::open(None, None).expect("no file").is_none());
    }

    #[test]
    fn a_bad_file_leaves_the_keys_and_a_good_one_replaces_them() {
        let path = std::env::temp_dir().join(format!("trail-keys-{}.toml", std::process::id()));
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        write("[[keys]]\nname = \"a\"\nkey = \"one\"\ntokens_per_minute = 60");
        let keys = keys(Some("own"), Some(&path));
        let one = keys.find(b"one").expect("a key");
        write("[[keys]]\nname = \"a\"\nkey = ");
        let error = keys.reload().expect_err("malformed").to_string();
        assert!(error.contains("line 3"), "{error}");
        assert!(keys.find(b"one").is_some());
        write("[[keys]]\nname = \"a\"\nkey = \"two\"\ntokens_per_minute = 60");
        assert_eq!(keys.reload(), Ok(2));
        assert!(keys.find(b"one").is_none() && keys.find(b"own").is_some());
        let two = keys.find(b"two").expect("the new key");
        assert!(Arc::ptr_eq(&one.rate, &two.rate), "its use of the limit goes on");
        std::fs::remove_file(&path).expect("removed");
        assert!(keys.reload().is_err() && keys.find(b"two").is_some());
    }
}
