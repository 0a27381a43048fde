//! The ways to the server: TLS, a Unix socket, pages of other origins, a path behind a proxy.
//!
//! The certificates and keys in `tls/` are for these tests alone; openssl made them, for a hundred
//! years.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use crate::common::{Response, Server, assert_refused, trail_rt};

const COMPLETIONS: &str = "/v1/completions";

fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/tls").join(name)
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trail-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

/// Connects to a server with the certificate in `trusted`; `None` if it has another.
fn connect(address: SocketAddr, trusted: &str) -> Option<Secured> {
    let certificate =
        CertificateDer::from_pem_file(pem(&format!("{trusted}.pem"))).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("an anchor");
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    let socket = TcpStream::connect(address).expect("the server listens");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).ok()?;
    }
    Some(stream)
}

/// Sends a request whose response ends with the connection.
fn send(stream: &mut impl Write, path: &str, body: &str) {
    let length = body.len();
    let method = if body.is_empty() { "GET" } else { "POST" };
    let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\n");
    // In one write: a server that refuses its first bytes closes the connection.
    let text = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).expect("sent");
}

fn long() -> String {
    json!({ "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true }).to_string()
}

#[test]
fn a_certificate_is_replaced_and_streams_go_on() {
    let folder = Folder::new("tls");
    let (certificate, key) = (folder.file("c.pem"), folder.file("k.pem"));
    let install = |name: &str| {
        fs::copy(pem(&format!("{name}.pem")), &certificate).expect("copied");
        fs::copy(pem(&format!("{name}.key")), &key).expect("copied");
    };
    install("first");
    let mut server = Server::start(&["--tls-cert", &certificate, "--tls-key", &key]);
    let mut before = connect(server.address, "first").expect("the first certificate");
    send(&mut before, COMPLETIONS, &long());
    assert!(connect(server.address, "second").is_none());
    fs::write(&certificate, "no PEM").expect("written");
    server.signal("-HUP");
    let line = server.line();
    assert!(line.starts_with("warning: SIGHUP: the former certificate stays"), "{line}");
    assert!(connect(server.address, "first").is_some());
    install("second");
    server.signal("-HUP");
    assert!(server.line().starts_with("SIGHUP: new connections"));
    let mut after = connect(server.address, "second").expect("the second certificate");
    assert!(connect(server.address, "first").is_none());
    send(&mut after, "/health", "");
    assert_eq!(Response::read(&mut after).status, 200);
    let whole = Response::read(&mut before);
    assert!(whole.status == 200 && whole.body.ends_with("data: [DONE]\n\n"), "{}", whole.body);
}

#[test]
fn plain_http_is_no_tls_and_a_leaving_client_is_noticed() {
    let (certificate, key) = (pem("first.pem"), pem("first.key"));
    let paths = [&certificate, &key].map(|path| path.to_str().expect("UTF-8"));
    let server = Server::start(&["--tls-cert", paths[0], "--tls-key", paths[1]]);
    let mut plain = TcpStream::connect(server.address).expect("the server listens");
    send(&mut plain, "/health", "");
    let mut answer = Vec::new();
    // An alert of TLS, or nothing.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let metric = |name: &str| {
        let mut stream = connect(server.address, "first").expect("a connection");
        send(&mut stream, "/metrics", "");
        let text = Response::read(&mut stream).body;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let wait_for = |name: &str, value: f64| {
        let start = Instant::now();
        while metric(name) != value {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} is {}", metric(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut streaming = connect(server.address, "first").expect("a connection");
    send(&mut streaming, COMPLETIONS, &long());
    let mut waiting = connect(server.address, "first").expect("a connection");
    send(&mut waiting, COMPLETIONS, &long().replace("\"stream\":true", "\"stream\":false"));
    wait_for("trail_requests_running", 2.0);
    drop((streaming, waiting));
    wait_for("trail_requests_total{finish_reason=\"cancelled\"}", 2.0);
}

#[test]
fn a_handshake_that_does_not_come_holds_up_no_drain() {
    let (certificate, key) = (pem("first.pem"), pem("first.key"));
    let paths = [&certificate, &key].map(|path| path.to_str().expect("UTF-8"));
    let mut server = Server::start(&["--tls-cert", paths[0], "--tls-key", paths[1]]);
    let silent = TcpStream::connect(server.address).expect("the server listens");
    // Accepted in this order.
    assert!(connect(server.address, "first").is_some());
    let start = Instant::now();
    server.terminate();
    assert_eq!(server.end().0.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(20), "the time limit of a drain is 30 s");
    drop(silent);
}

#[test]
fn files_that_do_not_fit_are_refused_at_the_start() {
    let path = |name: &str| pem(name).to_str().expect("UTF-8").to_owned();
    for (certificate, key, says) in [
        (path("first.pem"), path("second.key"), "cannot be used"),
        (path("first.key"), path("first.key"), "no certificate"),
        (path("first.pem"), path("first.pem"), "cannot read"),
        (path("none.pem"), path("first.key"), "cannot read"),
    ] {
        let arguments = ["serve", "--port", "0", "--tls-cert", &certificate, "--tls-key", &key];
        let output = trail_rt(&arguments);
        assert_refused(&output, 2, says);
    }
    let alone = trail_rt(&["serve", "--tls-cert", &path("first.pem")]);
    assert_refused(&alone, 2, "--tls-key");
}

#[test]
fn a_unix_socket_is_private_and_removed_at_the_end() {
    let folder = Folder::new("socket");
    let path = folder.file("server.sock");
    let mut server = Server::start(&["--uds", &path]);
    let mode = fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = UnixStream::connect(&path).expect("the server listens");
    send(&mut client, COMPLETIONS, &long());
    let answer = Response::read(&mut client);
    assert!(answer.status == 200 && answer.body.ends_with("data: [DONE]\n\n"), "{}", answer.body);
    assert_refused(&trail_rt(&["serve", "--uds", &path]), 1, "another server listens");
    server.terminate();
    assert_eq!(server.end().0.code(), Some(0));
    assert!(!Path::new(&path).exists());
    // One that was killed leaves its socket, which the next one replaces.
    let mut server = Server::start(&["--uds", &path]);
    server.signal("-KILL");
    server.end();
    assert!(Path::new(&path).exists());
    let mut server = Server::start(&["--uds", &path]);
    let mut client = UnixStream::connect(&path).expect("the server listens");
    send(&mut client, COMPLETIONS, &long());
    server.terminate();
    server.line();
    server.terminate();
    assert_eq!(server.end().0.code(), Some(1), "the second signal ends it");
    assert!(!Path::new(&path).exists());
    fs::write(&path, "text").expect("written");
    assert_refused(&trail_rt(&["serve", "--uds", &path]), 1, "no socket");
}

#[test]
fn pages_of_named_origins_may_use_the_server_and_no_others() {
    let origins = ["--cors-origin", "https://app.example,http://localhost:3000"];
    let server = Server::start(&[&origins[..], &["--api-key", "sk-a"]].concat());
    let preflight = |origin: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization,content-type"),
        ];
        server.exchange("OPTIONS", COMPLETIONS, &headers, "")
    };
    let allowed =
        |response: &Response| response.header("access-control-allow-origin").map(str::to_owned);
    let answer = preflight("https://app.example");
    assert_eq!((answer.status, allowed(&answer).as_deref()), (200, Some("https://app.example")));
    assert!(answer.header("access-control-allow-methods").is_some_and(|of| of.contains("POST")));
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,content-type"));
    for other in ["https://evil.example", "http://app.example", "null"] {
        let answer = preflight(other);
        assert_eq!((answer.status, allowed(&answer)), (403, None), "{other}");
    }
    let post = |origin: &str, key: &str| {
        let headers =
            [("Origin", origin), ("x-api-key", key), ("Content-Type", "application/json")];
        server.exchange("POST", COMPLETIONS, &headers, &long())
    };
    let answer = post("http://localhost:3000", "sk-a");
    assert_eq!((answer.status, allowed(&answer).as_deref()), (200, Some("http://localhost:3000")));
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
    let refused = post("https://app.example", "sk-b");
    assert_eq!((refused.status, allowed(&refused).as_deref()), (401, Some("https://app.example")));
    assert_eq!(post("https://evil.example", "sk-a").status, 403);
    // A server without the option answers no preflight.
    let server = Server::start(&[]);
    let headers = [("Origin", "http://localhost:3000"), ("Access-Control-Request-Method", "POST")];
    let answer = server.exchange("OPTIONS", COMPLETIONS, &headers, "");
    assert_eq!((answer.status, allowed(&answer)), (405, None));
    let output = trail_rt(&["serve", "--cors-origin", "app.example"]);
    assert_refused(&output, 2, "https://app.example");
}

#[test]
fn a_server_has_a_path_behind_a_proxy() {
    let server = Server::start(&["--root-path", "/llm"]);
    let body = json!({ "prompt": "a", "max_tokens": 1 });
    for path in ["/llm/v1/completions", "/v1/completions"] {
        server.post(path, &body);
    }
    assert_eq!(server.get("/llm/health").0, 200);
    assert_eq!(server.get("/llm").0, 200);
    assert_eq!(server.get("/llm2/health").0, 404);
    assert_refused(&trail_rt(&["serve", "--root-path", "llm/"]), 2, "--root-path llm/");
}
