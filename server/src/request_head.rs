//! Checks of a request's head: Host, Origin, types of the body.
//!
//! A server on a loopback address trusts the programs of its machine, and not the web pages in
//! their browsers: so a host that is no loopback name is refused there (DNS rebinding), and so is
//! another site's Origin (a cross-site POST needs no permission).

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HOST, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Uri, Version};
use axum::middleware::Next;
use axum::response::Response;

use crate::body_limits::BodyLimits;
use crate::cors::Origins;
use crate::error::ApiError;

/// The hosts and origins that may be named in a request.
#[derive(Clone, Debug)]
pub(crate) struct HeadRules {
    /// True if the server listens on a loopback address.
    pub is_loopback: bool,
    /// Names of such a server besides the loopback ones, as a proxy on its machine passes on.
    pub allowed_hosts: Vec<String>,
    /// True if bodies are JSON; else they are passed on as they come.
    pub takes_json_alone: bool,
    /// Origins of other sites whose pages may use the server.
    pub origins: Origins,
}

/// Refuses a request whose head breaks the rules. Its body is read all the same: a connection
/// closed on unread bytes is reset, and the client may not see the refusal.
pub(crate) async fn check(
    State(rules): State<Arc<HeadRules>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Err(refusal) = rules.check(&request) {
        BodyLimits::discard(request).await;
        return Err(refusal);
    }
    Ok(next.run(request).await)
}

impl HeadRules {
    fn check(&self, request: &Request) -> Result<(), ApiError> {
        let headers = request.headers();
        let host = host(request.version(), request.uri(), headers)?;
        if self.is_loopback {
            if let Some(host) = host.filter(|host| !self.allows(host.host())) {
                return Err(ApiError::forbidden(format!(
                    "this server listens on a loopback address and the request names the host '{0}': use http://localhost or http://127.0.0.1, or start it with --allowed-hosts {0}",
                    host.host()
                )));
            }
            self.check_origin(headers)?;
        }
        match *request.method() {
            Method::POST if self.takes_json_alone => check_body_headers(headers),
            _ => Ok(()),
        }
    }

    fn allows(&self, host: &str) -> bool {
        let is_host = |name: &String| name.eq_ignore_ascii_case(host);
        is_loopback_name(host) || self.allowed_hosts.iter().any(is_host)
    }

    /// Refuses a request that a page of another site sends. Pages of the server's own hosts, at any
    /// port, and programs, which send no Origin, are not refused.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        for origin in headers.get_all(ORIGIN) {
            if self.origins.allow(origin) {
                continue;
            }
            let origin = origin.to_str().unwrap_or_default();
            let uri: Option<Uri> = origin.parse().ok();
            if !uri.as_ref().and_then(Uri::host).is_some_and(|host| self.allows(host)) {
                return Err(ApiError::forbidden(format!(
                    "pages of '{origin}' may not use this server: it listens on a loopback address (--cors-origin {origin} allows it)"
                )));
            }
        }
        Ok(())
    }
}

/// Checks a head as a server on a loopback address and as another one do, for the fuzz target: the
/// first line of `text` is the target, each other a header. Returns the errors.
#[cfg(fuzzing)]
pub fn check_text(text: &[u8]) -> [Option<serde_json::Value>; 2] {
    let mut lines = text.split(|&byte| byte == b'\n');
    let target = lines.next().unwrap_or_default();
    let mut request = axum::http::Request::builder().method(Method::POST).uri(target);
    for line in lines {
        let at = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let (name, value) = (&line[..at], line.get(at + 1..).unwrap_or_default());
        let value = axum::http::HeaderValue::from_bytes(value.trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
            request = request.header(name, value);
        }
    }
    // The parser of HTTP refuses such a target.
    let Ok(request) = request.body(axum::body::Body::empty()) else { return [None, None] };
    let allowed_hosts = vec!["api.example".to_owned()];
    [true, false].map(|is_loopback| {
        let rules = HeadRules {
            is_loopback,
            allowed_hosts: allowed_hosts.clone(),
            takes_json_alone: true,
            origins: Origins::default(),
        };
        rules.check(&request).err().map(|error| error.body())
    })
}

/// The host that a request names. HTTP/1.1 requires exactly one valid Host (RFC 9112, 3.2); the
/// target's own host wins over it (3.2.2).
fn host(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<Option<Authority>, ApiError> {
    let mut hosts = headers.get_all(HOST).iter();
    let named = match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(ApiError::invalid("the request has more than one Host header")),
        (None, _) if version == Version::HTTP_11 => {
            return Err(ApiError::invalid("the request has no Host header"));
        }
        (None, _) => None,
        (Some(host), None) => {
            let invalid = || ApiError::invalid("the Host header is no host with a port");
            let text = host.to_str().map_err(|_| invalid())?;
            let host: Authority = text.parse().map_err(|_| invalid())?;
            let is_valid = |host: &Authority| {
                let port = host.as_str().strip_prefix(host.host());
                port.is_some_and(|port| matches!(port, "" | ":") || host.port().is_some())
            };
            Some(host).filter(is_valid).ok_or_else(invalid).map(Some)?
        }
    };
    Ok(uri.authority().cloned().or(named))
}

/// True for `localhost`, names below it (RFC 6761, 6.3), and loopback addresses.
fn is_loopback_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Refuses bodies in a form that is not read, before they are.
fn check_body_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: HeaderName| {
        let value = headers.get(name)?;
        Some(value.to_str().unwrap_or("not text").trim().to_ascii_lowercase())
    };
    let has_origin = headers.contains_key(ORIGIN);
    let media_type = text(CONTENT_TYPE)
        .map(|value| value.split(';').next().unwrap_or_default().trim().to_owned());
    // Without an Origin, as programs send it, a missing type is JSON, and so is a form's, which
    // `curl -d` and Python's urllib declare by default. A page can send both to any host.
    let is_taken = match media_type.as_deref() {
        Some(media_type) if is_json(media_type) => true,
        None | Some("application/x-www-form-urlencoded") => !has_origin,
        Some(_) => false,
    };
    if !is_taken {
        let media_type = media_type.as_deref().unwrap_or("none");
        return Err(ApiError::unsupported_media_type(format!(
            "the type of the body is '{media_type}': send JSON with Content-Type: application/json"
        )));
    }
    if let Some(encoding) = text(CONTENT_ENCODING).filter(|encoding| encoding != "identity") {
        return Err(ApiError::unsupported_media_type(format!(
            "the body is encoded as '{encoding}': send it without Content-Encoding"
        )));
    }
    match text(EXPECT).filter(|expectation| expectation != "100-continue") {
        Some(expectation) => Err(ApiError::expectation_failed(&expectation)),
        None => Ok(()),
    }
}

fn is_json(media_type: &str) -> bool {
    media_type == "application/json"
        || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn status(rules: &HeadRules, method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = axum::http::Request::builder().method(method).uri("/v1/completions");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match rules.check(&request.body(Body::empty()).expect("a request")) {
            Ok(()) => 200,
            Err(refusal) => refusal.status().as_u16(),
        }
    }

    const LOOPBACK: HeadRules = HeadRules {
        is_loopback: true,
        allowed_hosts: Vec::new(),
        takes_json_alone: true,
        origins: Origins::NONE,
    };
    const PUBLIC: HeadRules = HeadRules {
        is_loopback: false,
        allowed_hosts: Vec::new(),
        takes_json_alone: true,
        origins: Origins::NONE,
    };

    #[test]
    fn one_valid_host_is_required() {
        for rules in [LOOPBACK, PUBLIC] {
            assert_eq!(status(&rules, "GET", &[]), 400);
            assert_eq!(status(&rules, "GET", &[("host", "localhost"), ("host", "localhost")]), 400);
            for bad in ["a b/?c", "", "user@localhost", "localhost:port"] {
                assert_eq!(status(&rules, "GET", &[("host", bad)]), 400, "{bad:?}");
            }
        }
    }

    #[test]
    fn a_loopback_server_has_loopback_names_alone() {
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "127.0.0.1:1",
            "127.1.2.3",
            "[::1]:80",
            "app.localhost",
            "localhost.",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(status(&LOOPBACK, "GET", &[("host", host)]), 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "notlocalhost", "10.0.0.1", "[::2]"]
        {
            assert_eq!(status(&LOOPBACK, "GET", &[("host", host)]), 403, "{host}");
            assert_eq!(status(&PUBLIC, "GET", &[("host", host)]), 200, "{host}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused_on_loopback() {
        let json = ("content-type", "application/json");
        let from = |rules: &HeadRules, origin: &str| {
            status(rules, "POST", &[("host", "localhost:8000"), ("origin", origin), json])
        };
        for origin in ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:1"] {
            assert_eq!(from(&LOOPBACK, origin), 200, "{origin}");
        }
        for origin in ["https://evil.example", "null", "http://localhost.evil.example", ""] {
            assert_eq!(from(&LOOPBACK, origin), 403, "{origin}");
            assert_eq!(from(&PUBLIC, origin), 200, "{origin}");
        }
    }

    #[test]
    fn a_proxys_name_is_allowed_on_request() {
        let rules = HeadRules { allowed_hosts: vec!["api.example".into()], ..LOOPBACK };
        for (host, origin, expected) in [
            ("Api.Example:443", "https://API.example", 200),
            ("other.example", "https://api.example", 403),
            ("api.example", "https://other.example", 403),
        ] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(status(&rules, "GET", &headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn bodies_are_plain_json() {
        let with = |name, value| status(&PUBLIC, "POST", &[("host", "a"), (name, value)]);
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/x+json"] {
            assert_eq!(with("content-type", json), 200, "{json}");
        }
        let form = ("content-type", "application/x-www-form-urlencoded");
        assert_eq!(status(&PUBLIC, "POST", &[("host", "a"), form]), 200);
        for (headers, expected) in [
            (&[][..], 200),
            (&[("origin", "http://b")], 415),
            (&[("origin", "http://b"), form], 415),
            (&[("origin", "http://b"), ("content-type", "application/json")], 200),
        ] {
            let headers = [&[("host", "a")], headers].concat();
            assert_eq!(status(&PUBLIC, "POST", &headers), expected, "{headers:?}");
        }
        for other in ["text/plain", "multipart/form-data", ""] {
            assert_eq!(with("content-type", other), 415, "{other}");
        }
        assert_eq!(with("content-encoding", "gzip"), 415);
        assert_eq!(with("content-encoding", "identity"), 200);
        assert_eq!(with("expect", "100-Continue"), 200);
        assert_eq!(with("expect", "other"), 417);
        assert_eq!(status(&PUBLIC, "GET", &[("host", "a"), ("content-type", "text/plain")]), 200);
    }
}
