//! The path under which a proxy serves this server.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use trail_cli::Error;

/// Checks the option's value: empty, or `/name` without a slash at the end.
pub(crate) fn check(root: &str) -> Result<(), Error> {
    let is_path = root.starts_with('/') && !root.ends_with('/') && root.parse::<Uri>().is_ok();
    match root.is_empty() || is_path && !root.contains('?') {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "--root-path {root}: give a path as /name, without a slash at its end"
        ))),
    }
}

/// Takes `root` from the beginning of a path. One without it stays: the proxy has taken it.
pub(crate) fn strip(root: &str, uri: &mut Uri) {
    let Some(rest) = uri.path_and_query().and_then(|path| path.as_str().strip_prefix(root)) else {
        return;
    };
    let rest = match rest.as_bytes().first() {
        _ if root.is_empty() => return,
        Some(b'/') => rest.to_owned(),
        None | Some(b'?') => format!("/{rest}"),
        // Another name that begins alike.
        Some(_) => return,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = PathAndQuery::try_from(rest).ok();
    if let Ok(stripped) = Uri::from_parts(parts) {
        *uri = stripped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_taken_where_it_is_whole() {
        for (root, path, expected) in [
            ("/llm", "/llm/v1/models?a=b", "/v1/models?a=b"),
            ("/llm", "/v1/models", "/v1/models"),
            ("/llm", "/llm", "/"),
            ("/llm", "/llm?a", "/?a"),
            ("/llm", "/llm2/v1", "/llm2/v1"),
            ("/a/b", "/a/b/live", "/live"),
            ("", "/live", "/live"),
            ("/llm", "http://host/llm/live", "http://host/live"),
        ] {
            let mut uri: Uri = path.parse().expect("a target");
            strip(root, &mut uri);
            assert_eq!(uri.to_string(), expected, "{root} {path}");
        }
        assert!(check("").is_ok() && check("/a").is_ok() && check("/a/b").is_ok());
        for bad in ["a", "/", "/a/", "/a b", "/a?b"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
