//! Paths as the server behind the proxy may read them.

use percent_encoding::percent_decode_str;

/// `path` without escapes, empty names, `.`, and a slash at the end: servers that read paths so
/// know it by this one. `None` if it goes up by `..`.
pub(super) fn plain(path: &str) -> Option<String> {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let names = decoded.split(['/', '\\']).filter(|name| !matches!(*name, "" | "."));
    let names: Vec<&str> = names.collect();
    (!names.contains(&"..")).then(|| format!("/{}", names.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for path in [
            "/v1/chat/completions",
            "/v1/%63hat/completions",
            "/v1/chat/completions/",
            "//v1///chat/completions",
            "/v1/./chat/completions",
            "/v1%2Fchat%2fcompletions",
            "/%76%31/chat/completions%2f",
        ] {
            assert_eq!(plain(path).as_deref(), Some("/v1/chat/completions"), "{path}");
        }
        assert_eq!(plain("/v1/models/a..b").as_deref(), Some("/v1/models/a..b"));
        assert_eq!(plain("/").as_deref(), Some("/"));
        for up in ["/..", "/v1/../admin", "/v1/%2e%2E/admin", "/v1/..%2Fadmin", "/v1\\..\\a"] {
            assert_eq!(plain(up), None, "{up}");
        }
    }
}
