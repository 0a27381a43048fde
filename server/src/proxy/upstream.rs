//! The server behind the proxy.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, HeaderValue, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::BoxError;
use tower::timeout::Timeout;
use tower::util::BoxCloneSyncService;
use trail_cli::Error;

use crate::secret::Secret;

/// Time to connect, the handshake of TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a server that is not ending keeps a connection without a request.
const ENDING: Duration = Duration::from_millis(200);
/// Time for which a connection with TLS is kept for the next request: less than the 5 s of uvicorn
/// and llama.cpp, so that few requests meet one that is being closed.
const KEPT_IDLE: Duration = Duration::from_secs(4);

/// Headers of one connection, which are not passed on (RFC 9110, 7.6.1), beside those that
/// `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers with a client's key.
const KEYS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];

/// Makes connections.
type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

/// Keys in the requests that are sent on.
#[derive(Default)]
pub(super) struct Keys {
    /// The server's own, in place of the clients'.
    pub upstream: Option<Secret>,
    /// True if the clients' keys are for the proxy: they stay here.
    pub are_for_proxy: bool,
}

/// The server, and the connections to it.
pub(super) struct Upstream {
    scheme: Scheme,
    authority: Authority,
    /// Path before those of requests, without a `/` at the end.
    base: String,
    client: Client<Connector, Body>,
    /// Clients' keys stay here.
    keeps_keys: bool,
    /// Its own key, as a header.
    key: Option<HeaderValue>,
}

/// A request that got no answer.
#[derive(Debug)]
pub(super) struct NoAnswer {
    /// True if the server may have begun to work on it.
    pub was_sent: bool,
    /// True if the server cannot be reached now.
    pub is_down: bool,
    /// The reason, for the log: clients need not know where the server is.
    pub why: String,
}

/// For clients.
impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.was_sent { "gave no answer" } else { "cannot be reached" };
        write!(f, "the server behind the proxy {what}")
    }
}

impl Upstream {
    /// The server at `url`, which gets requests with `keys`.
    pub(super) fn new(url: &str, keys: &Keys) -> Result<Upstream, Error> {
        let bad = |why: &str| Error::usage(format!("--upstream {url}: {why}"));
        let uri: Uri = url.parse().map_err(|_| bad("give http://HOST:PORT"))?;
        let parts = uri.into_parts();
        let scheme =
            parts.scheme.filter(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
        let (Some(scheme), Some(authority)) = (scheme, parts.authority) else {
            return Err(bad("give http://HOST:PORT or https://HOST:PORT"));
        };
        if authority.as_str().contains('@') {
            // The address is shown in messages.
            let why = "leave the user and the password out of the address; --upstream-key KEY \
                       sends a key";
            return Err(Error::usage(format!("--upstream: {why}")));
        }
        if parts.path_and_query.as_ref().is_some_and(|path| path.query().is_some()) {
            return Err(bad("leave its query out"));
        }
        // The paths of requests have it.
        let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path);
        let path = path.trim_end_matches('/');
        let base = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_keepalive(Some(Duration::from_secs(30)));
        let connector = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let connector = BoxCloneSyncService::new(Timeout::new(connector, CONNECT_TIMEOUT));
        // llama.cpp closes a connection after a stream, and does not say so: a request that waited
        // for the end of the stream would be lost. Without TLS a new connection costs little.
        let kept = if scheme == Scheme::HTTPS { usize::MAX } else { 0 };
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(kept)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEPT_IDLE)
            .build(connector);
        let key = keys.upstream.as_ref().map(Secret::bearer);
        let keeps_keys = keys.are_for_proxy || key.is_some();
        Ok(Upstream { scheme, authority, base, client, keeps_keys, key })
    }

    /// Its address, for messages.
    pub(super) fn shown(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.base)
    }

    /// Sends a request with this head; `id` is its `x-request-id`. Dropping the future, or the
    /// answer's body, closes the connection, by which the server learns that the client has left.
    pub(super) async fn send(
        &self,
        head: &Parts,
        id: &str,
        body: Body,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(format!("{}{path}", self.base))
            .build();
        let uri = uri.map_err(|error| NoAnswer {
            was_sent: false,
            is_down: false,
            why: format!("{} has no such path: {error}", self.shown()),
        })?;
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
        let mut headers = end_to_end(&head.headers);
        // Those of the client's connection and of its body, which the client of this one sets.
        for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
            headers.remove(name);
        }
        if self.keeps_keys {
            KEYS.iter().for_each(|name| drop(headers.remove(name)));
        }
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert("x-request-id", id);
        }
        *request.headers_mut() = headers;
        let error = match self.client.request(request).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let was_sent = !error.is_connect();
        let is_down = !was_sent || !self.is_reachable().await;
        let what = if was_sent { "gave no answer" } else { "cannot be reached" };
        let why = format!("the server at {} {what}: {}", self.shown(), causes(&error));
        Err(NoAnswer { was_sent, is_down, why })
    }

    /// True if the server takes a connection and keeps it. One that is ending closes its listener
    /// a moment after the connections of requests, and with it what the listener took.
    async fn is_reachable(&self) -> bool {
        let default = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        // An address of IPv6 has brackets in a URL.
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let connect = TcpStream::connect((host, self.authority.port_u16().unwrap_or(default)));
        let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, connect).await else { return false };
        // Its end is all that can be read.
        timeout(ENDING, stream.readable()).await.is_err()
    }
}

/// `headers` without those of one connection.
pub(super) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for named in headers.get_all(header::CONNECTION) {
        let names = named.to_str().unwrap_or_default().split(',');
        names.for_each(|name| {
            kept.remove(name.trim());
        });
    }
    HOP_BY_HOP.iter().for_each(|name| {
        kept.remove(name);
    });
    kept
}

/// An error with those that it comes from: the last one says most.
fn causes(error: &ClientError) -> String {
    let first: &dyn std::error::Error = error;
    let all = std::iter::successors(first.source(), |error| error.source());
    all.last().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(url: &str) -> Result<Upstream, Error> {
        Upstream::new(url, &Keys::default())
    }

    #[test]
    fn an_upstream_is_an_address_with_or_without_the_api_s_path() {
        for (url, shown) in [
            ("http://127.0.0.1:9", "http://127.0.0.1:9"),
            ("http://localhost:9/v1/", "http://localhost:9"),
            ("https://api.example/llm/v1", "https://api.example/llm"),
        ] {
            assert_eq!(new(url).map(|of| of.shown()), Ok(shown.to_owned()));
        }
        for url in ["", "localhost:9", "ftp://a", "http://a/?b", "/v1", "http://"] {
            let error = new(url).err().expect("refused");
            assert!(error.to_string().starts_with(&format!("--upstream {url}: ")), "{error}");
        }
        let error = new("https://me:sk-secret@a/v1").err().expect("refused").to_string();
        assert!(error.contains("--upstream-key") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn headers_of_a_connection_stay_behind() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "a"),
            ("te", "trailers"),
            ("proxy-authorization", "Basic a"),
            ("authorization", "Bearer a"),
            ("x-other", "b"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let kept = end_to_end(&headers);
        let mut names: Vec<_> = kept.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "x-other"]);
    }
}
