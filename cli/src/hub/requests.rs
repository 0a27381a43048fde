//! Requests to the hub: time limits, redirects, and a token that no other host gets.

use std::time::Duration;

use hf_hub::api::RepoInfo;
use hf_hub::api::sync::ApiError;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

/// Hosts that one answer may be redirected to in turn.
const MAX_REDIRECTS: u32 = 5;
/// Longest list of a repository's files, bytes.
const MAX_LIST: u64 = 16 << 20;

/// A client of one hub. It follows redirects itself, as the token is for the hub alone.
pub(super) struct Requests {
    agent: Agent,
    endpoint: String,
    authorization: Option<String>,
}

/// The hub's statements about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    /// Commit of the repository.
    pub(super) commit: String,
    /// SHA-256 of a large file, git's SHA-1 of another one.
    pub(super) etag: String,
    /// Size, bytes.
    pub(super) bytes: u64,
}

impl Requests {
    /// A client of the hub at `endpoint`, with `token` for it. It waits `stall` at most for a
    /// connection, for the head of an answer, and for each of its bytes.
    pub(super) fn new(endpoint: &str, token: Option<&str>, stall: Duration) -> Requests {
        let config = Agent::config_builder()
            .timeout_connect(Some(stall))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("trail-rt/", env!("CARGO_PKG_VERSION")))
            // Ranges and sizes are those of the file, not of an encoding.
            .accept_encoding("identity");
        Requests {
            agent: config.build().into(),
            endpoint: endpoint.to_owned(),
            authorization: token.map(|token| format!("Bearer {token}")),
        }
    }

    /// Files and commit of `main`.
    pub(super) fn list(&self, repository: &str) -> Result<RepoInfo, ApiError> {
        let url = format!("{}/api/models/{repository}/revision/main", self.endpoint);
        let mut response = self.follow(url, None)?;
        let body = response.body_mut().with_config().limit(MAX_LIST);
        let bytes = body.read_to_vec().map_err(Box::new)?;
        let info = serde_json::from_slice(&bytes);
        info.map_err(|error| ApiError::RequestError(Box::new(ureq::Error::Json(error))))
    }

    /// Address of the file `name` of `repository` at `commit`.
    pub(super) fn url(&self, repository: &str, commit: &str, name: &str) -> String {
        format!("{}/{repository}/resolve/{commit}/{name}", self.endpoint)
    }

    /// The content of `url` from the byte `begin` on.
    pub(super) fn content(&self, url: &str, begin: u64) -> Result<Response<Body>, ApiError> {
        self.follow(url.to_owned(), Some(&format!("bytes={begin}-")))
    }

    /// Metadata of the file at `url`. The hub states them before it redirects to another host; the
    /// size is asked of that one where the hub does not state it.
    pub(super) fn metadata(&self, url: &str) -> Result<Metadata, ApiError> {
        let (mut url, mut stated) = (url.to_owned(), None);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get(&url, Some("bytes=0-0"))?;
            let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.trim());
            if let (None, Some(commit)) = (&stated, header("X-Repo-Commit")) {
                let etag = header("X-Linked-ETag").or(header("ETag"));
                let etag = etag.ok_or(ApiError::MissingHeader("ETag"))?;
                stated = Some((commit.to_owned(), unquoted(etag).to_owned()));
            }
            let next = redirect(&url, &response)?;
            let size = match next {
                Some(_) => header("X-Linked-Size"),
                None => Some(total(&response).ok_or(ApiError::MissingHeader("Content-Range"))?),
            };
            match (size, next, &stated) {
                (Some(size), _, Some((commit, etag))) => {
                    let (commit, etag) = (commit.clone(), etag.clone());
                    return Ok(Metadata { commit, etag, bytes: size.parse()? });
                }
                (_, Some(next), _) => url = next,
                _ => return Err(ApiError::MissingHeader("X-Repo-Commit")),
            }
        }
        Err(endless())
    }

    /// The answer to a request for `url`, after redirects.
    fn follow(&self, mut url: String, range: Option<&str>) -> Result<Response<Body>, ApiError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get(&url, range)?;
            match redirect(&url, &response)? {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(endless())
    }

    fn get(&self, url: &str, range: Option<&str>) -> Result<Response<Body>, ApiError> {
        let mut request = self.agent.get(url);
        if let Some(range) = range {
            request = request.header("Range", range);
        }
        let authorization =
            self.authorization.as_ref().filter(|_| is_same_host(&self.endpoint, url));
        if let Some(authorization) = authorization {
            request = request.header("Authorization", authorization);
        }
        Ok(request.call().map_err(Box::new)?)
    }
}

fn endless() -> ApiError {
    ApiError::RequestError(Box::new(ureq::Error::TooManyRedirects))
}

/// True if `url` is of the host and port of `hub`, and its connection no less safe.
fn is_same_host(hub: &str, url: &str) -> bool {
    let parts = |url: &str| {
        let uri: Uri = url.parse().ok()?;
        let is_https = uri.scheme_str()? == "https";
        let default = if is_https { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(default);
        Some((uri.host()?.to_ascii_lowercase(), is_https, port, port == default))
    };
    let (Some(hub), Some(url)) = (parts(hub), parts(url)) else { return false };
    let is_upgraded = !hub.1 && url.1 && hub.3 && url.3;
    hub.0 == url.0 && (is_upgraded || (hub.1 == url.1 && hub.2 == url.2))
}

/// The address that `response`, to a request for `url`, redirects to.
fn redirect(url: &str, response: &Response<Body>) -> Result<Option<String>, ApiError> {
    if !response.status().is_redirection() {
        return Ok(None);
    }
    let location = response.headers().get("Location").and_then(|value| value.to_str().ok());
    absolute(url, location.ok_or(ApiError::MissingHeader("Location"))?.trim()).map(Some)
}

/// Scheme, host and port of `url`, as it spells them.
fn origin(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    Some(&url[..scheme.len() + 3 + host])
}

/// The address that an answer of `url` names as `location`.
fn absolute(url: &str, location: &str) -> Result<String, ApiError> {
    let invalid = || ApiError::InvalidHeader("Location");
    match location {
        _ if location.starts_with("https://") || location.starts_with("http://") => {
            Ok(location.to_owned())
        }
        _ if location.starts_with('/') && !location.starts_with("//") => {
            Ok(format!("{}{location}", origin(url).ok_or_else(invalid)?))
        }
        _ => Err(invalid()),
    }
}

/// Size of the whole file; the answer may have one byte of it.
fn total(response: &Response<Body>) -> Option<&str> {
    let header = |name: &str| response.headers().get(name)?.to_str().ok();
    match header("Content-Range") {
        Some(range) => range.rsplit_once('/').map(|(_, total)| total.trim()),
        None => header("Content-Length").map(str::trim),
    }
}

/// An ETag without its quotes and the mark of a weak one.
fn unquoted(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_the_same_host_and_port() {
        for (hub, url) in [
            ("https://hub.example", "https://hub.example/a/b"),
            ("https://Hub.example", "https://hub.EXAMPLE:443/a"),
            ("http://hub.example", "https://hub.example/a"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080?x"),
        ] {
            assert!(is_same_host(hub, url), "{hub} {url}");
        }
        for (hub, url) in [
            ("https://hub.example", "http://hub.example/"),
            ("https://hub.example", "https://hub.example:8443/"),
            ("https://hub.example", "https://a.hub.example/"),
            ("https://hub.example", "https://hub.example.evil/"),
            ("https://hub.example", "https://hub.example@evil/"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:9999/"),
            ("http://127.0.0.1:8080", "https://127.0.0.1:8443/"),
            ("hub.example", "hub.example"),
        ] {
            assert!(!is_same_host(hub, url), "{hub} {url}");
        }
    }

    #[test]
    fn a_location_is_absolute_or_of_the_same_host() {
        let at = |location| absolute("https://hub.example/a/b?c", location).ok();
        assert_eq!(at("/d/e").as_deref(), Some("https://hub.example/d/e"));
        assert_eq!(at("http://cdn.example/d").as_deref(), Some("http://cdn.example/d"));
        for refused in ["//cdn.example/d", "d/e", "ftp://cdn.example", ""] {
            assert_eq!(at(refused), None, "{refused}");
        }
    }
}
