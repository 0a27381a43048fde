//! A model hub on loopback: the listing, files with redirects, ranges and ETags, and its faults.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::common::{PROGRAM, deadline};

/// Commit of every repository.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Files of this size or more are stored as LFS objects: behind a redirect, with a SHA-256.
const LFS_BYTES: usize = 1000;

/// Behaviour of the server, which a test changes as it goes.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// `OWNER/NAME` to files by name.
    pub(crate) repositories: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Downloads to break off half way.
    pub(crate) cuts: usize,
    /// Downloads to close before the first byte.
    pub(crate) drops: usize,
    /// The ETags of small files are weak.
    pub(crate) is_weak: bool,
    /// A repository that has another name now: its old name and the new one.
    pub(crate) renamed: Option<(String, String)>,
    /// LFS objects are sent with one byte changed.
    pub(crate) is_damaged: bool,
    /// Files in git are sent with one byte changed.
    pub(crate) is_damaged_in_git: bool,
    /// Connections stay open until the client closes them: an answer that breaks off stalls.
    pub(crate) stalls: bool,
    /// The listing is not answered.
    pub(crate) list_is_dropped: bool,
    /// Token without which all requests are answered with 401.
    pub(crate) token: Option<String>,
    /// Status of all answers.
    pub(crate) status: Option<u16>,
    /// First line and range of all requests.
    pub(crate) log: Vec<String>,
}

/// The server; its thread ends with the test program.
pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<Behaviour>>,
}

impl Hub {
    /// A hub with one repository `OWNER/NAME`.
    pub(crate) fn start(repository: &str, files: &[(&str, &[u8])]) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        // Another host, which must get no token.
        let cdn = TcpListener::bind("127.0.0.2:0").expect("a second loopback address");
        let cdn_address = cdn.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(Behaviour::default()));
        let hub = Hub { address, state: state.clone() };
        hub.add(repository, files);
        for listener in [listener, cdn] {
            let state = state.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (stream, state) = (stream.expect("a connection"), state.clone());
                    thread::spawn(move || answer(&stream, cdn_address, &state));
                }
            });
        }
        hub
    }

    /// Adds a repository.
    pub(crate) fn add(&self, repository: &str, files: &[(&str, &[u8])]) {
        let files = files.iter().map(|&(name, bytes)| (name.to_owned(), bytes.to_vec())).collect();
        self.set(|state| state.repositories.insert(repository.to_owned(), files));
    }

    /// Changes or reads the behaviour.
    pub(crate) fn set<T>(&self, change: impl FnOnce(&mut Behaviour) -> T) -> T {
        change(&mut self.state.lock().expect("no panic"))
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.set(|state| std::mem::take(&mut state.log))
    }

    /// Runs `trail-rt` with this hub and the cache of `home`.
    pub(crate) fn run(&self, home: &std::path::Path, arguments: &[&str]) -> Output {
        let endpoint = format!("http://{}", self.address);
        deadline::output(command(home).env("HF_ENDPOINT", endpoint).args(arguments))
    }

    /// Runs `trail-rt` like [`run`](Self::run), with a short patience.
    pub(crate) fn run_impatiently(&self, home: &std::path::Path, arguments: &[&str]) -> Output {
        let mut command = command(home);
        command.env("HF_ENDPOINT", format!("http://{}", self.address));
        deadline::output(command.env("HF_HUB_DOWNLOAD_TIMEOUT", "0.3").args(arguments))
    }
}

/// The program with the cache of `home`, and with no other setting for hubs or proxies.
pub(crate) fn command(home: &std::path::Path) -> Command {
    let mut command = Command::new(PROGRAM);
    for name in [
        "HF_TOKEN",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HF_HUB_DOWNLOAD_TIMEOUT",
        "NO_PROXY",
        "no_proxy",
    ] {
        command.env_remove(name);
    }
    for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.env("HF_HOME", home);
    command
}

/// Answers one request and closes the connection.
fn answer(stream: &TcpStream, cdn: SocketAddr, state: &Mutex<Behaviour>) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let header = |name: &str| {
        let named = |line: &String| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        headers.iter().find_map(named)
    };
    let range = header("range").unwrap_or_default();
    let mut state = state.lock().expect("no panic");
    state.log.push(format!("{first} {range}"));
    let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let renamed = state.renamed.as_ref().filter(|(old, _)| path.contains(old.as_str()));
    let moved = renamed.map(|(old, new)| path.replace(old, new));
    let response = match (state.status, wanted) {
        _ if moved.is_some() => {
            let location = format!("Location: {}\r\n", moved.unwrap_or_default());
            whole("307 Temporary Redirect", &location, b"", 0)
        }
        (Some(status), _) => status_only(status),
        _ if path.starts_with("/cdn/") && header("authorization").is_some() => status_only(400),
        (_, Some(_)) if path.starts_with("/cdn/") => content(&path, &range, cdn, &mut state),
        (_, Some(ref wanted)) if header("authorization").as_ref() != Some(wanted) => {
            status_only(401)
        }
        _ => content(&path, &range, cdn, &mut state),
    };
    let stalls = state.stalls;
    drop(state);
    // The client may have gone.
    let _ = (&*stream).write_all(&response);
    if stalls {
        let _ = io::copy(&mut &*stream, &mut io::sink());
    }
}

fn status_only(status: u16) -> Vec<u8> {
    format!("HTTP/1.1 {status} Status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into()
}

/// The response to a path.
fn content(path: &str, range: &str, cdn: SocketAddr, state: &mut Behaviour) -> Vec<u8> {
    if let Some(repository) = path.strip_prefix("/api/models/") {
        let repository = repository.strip_suffix("/revision/main").unwrap_or(repository);
        if state.list_is_dropped {
            return Vec::new();
        }
        let Some(files) = state.repositories.get(repository) else { return status_only(404) };
        let siblings: Vec<_> =
            files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let body = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        return whole("200 OK", "Content-Type: application/json\r\n", body.as_bytes(), body.len());
    }
    let (path, is_cdn) = match path.strip_prefix("/cdn") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let found = path[1..].split_once(&format!("/resolve/{COMMIT}/"));
    let found = found.and_then(|(repository, name)| state.repositories.get(repository)?.get(name));
    let Some(bytes) = found.cloned() else { return status_only(404) };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let digest = hex(&Sha256::digest(&bytes));
    let blob = [format!("blob {}\0", bytes.len()).as_bytes(), &bytes].concat();
    let git_digest = hex(&Sha1::digest(blob));
    if bytes.len() >= LFS_BYTES && !is_cdn {
        let headers = format!(
            "X-Repo-Commit: {COMMIT}\r\nX-Linked-ETag: \"{digest}\"\r\nETag: \"other\"\r\n\
             Location: http://{cdn}/cdn{path}\r\n"
        );
        return whole("302 Found", &headers, b"", 0);
    }
    let weak = if state.is_weak { "W/" } else { "" };
    let etag = format!("X-Repo-Commit: {COMMIT}\r\nETag: {weak}\"{git_digest}\"\r\n");
    let is_damaged = if is_cdn { state.is_damaged } else { state.is_damaged_in_git };
    send_range(bytes, range, &etag, is_damaged, state)
}

/// The bytes of `range`, `bytes=FIRST-` or `bytes=0-0`.
fn send_range(
    mut bytes: Vec<u8>,
    range: &str,
    headers: &str,
    is_damaged: bool,
    state: &mut Behaviour,
) -> Vec<u8> {
    let total = bytes.len();
    let (first, last) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).expect(range);
    let first: usize = first.parse().expect("a number");
    let last = last.parse().unwrap_or(total.saturating_sub(1));
    if first >= total {
        return status_only(416);
    }
    if is_damaged {
        bytes[total / 2] ^= 1;
    }
    let headers = format!("{headers}Content-Range: bytes {first}-{last}/{total}\r\n");
    let (body, length) = (&bytes[first..=last], last + 1 - first);
    let is_download = last > 0 && length > 1;
    if is_download && state.drops > 0 {
        state.drops -= 1;
        return Vec::new();
    }
    let is_cut = is_download && state.cuts > 0;
    state.cuts -= usize::from(is_cut);
    let sent = if is_cut { length / 2 } else { length };
    whole("206 Partial Content", &headers, &body[..sent], length)
}

fn whole(status: &str, headers: &str, body: &[u8], length: usize) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}
