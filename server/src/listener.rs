//! The listening socket and its accept loop.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use tokio::io::Interest;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use trail_cli::{Error, notice};

use crate::Host;
use crate::connection;
use crate::error::{ApiError, RETRY_SECONDS};
use crate::process_limits::raise_open_files;
use crate::socket::Socket;
use crate::state::ServerState;
use crate::unix_socket::UnixSocket;

/// Connections at once by default: as many as the engine has requests.
const DEFAULT_CONNECTIONS: usize = 4096;
/// Descriptors that are left for files and for connections that are refused.
const OTHER_FILES: usize = 2 * MAX_REFUSED;
/// Connections that are told at once that there is no room for them; more are closed.
const MAX_REFUSED: usize = 64;
/// Time for a refused client to read the answer.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an accept that failed for lack of file descriptors or memory, so that the loop does
/// not spin until a connection is closed.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two log lines about failed accepts.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// The programs that reach a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of its owner.
    Owner,
    /// Those of this machine, and the pages in its browsers.
    Loopback,
    /// Other machines too.
    Network,
}

/// Listens on a Unix socket at `uds`, or else at `host`.
pub(crate) async fn open(
    (host, port): Host<'_>,
    uds: Option<&Path>,
) -> Result<(Listener, Reach), Error> {
    if let Some(path) = uds {
        let socket = UnixSocket::bind(path).map_err(|error| {
            Error::failed(format!("cannot listen on {}: {error}", path.display()))
        })?;
        return Ok((Listener::Unix(socket), Reach::Owner));
    }
    let unusable = |error| Error::failed(format!("cannot listen on {host}:{port}: {error}"));
    let listener = bind(host, port).await.map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    let is_loopback = address.ip().to_canonical().is_loopback();
    let reach = if is_loopback { Reach::Loopback } else { Reach::Network };
    Ok((Listener::Tcp(listener), reach))
}

/// Fails as [`open`] would: to be asked before what takes long.
pub(crate) fn check((host, port): Host<'_>) -> Result<(), Error> {
    let unusable = |error| Error::failed(format!("cannot listen on {host}:{port}: {error}"));
    let mut addresses: Vec<_> = (host, port).to_socket_addrs().map_err(unusable)?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    std::net::TcpListener::bind(&addresses[..]).map(drop).map_err(unusable)
}

impl Listener {
    /// Where clients connect.
    pub(crate) fn url(&self, has_tls: bool) -> String {
        let scheme = if has_tls { "https" } else { "http" };
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("{scheme}://{address}"),
                Err(error) => format!("{scheme}://unknown: {error}"),
            },
            Listener::Unix(socket) => format!("{scheme}+unix://{}", socket.file.path.display()),
        }
    }

    /// The next connection.
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Events of a stream are small writes, which must not wait for the client's ACK.
                // Fails only if the client has left, which the first read reports.
                let _ = stream.set_nodelay(true);
                Ok(Socket::Tcp(stream))
            }
            Listener::Unix(socket) => Ok(Socket::Unix(socket.listener.accept().await?.0)),
        }
    }
}

/// Listens on `host`, a name or an address. A name with several addresses is bound to one: the
/// first IPv4 address that is free, else the first of the others, since `localhost` is mostly
/// written as 127.0.0.1 by clients.
async fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    TcpListener::bind(&addresses[..]).await
}

/// Connections that the server takes at once: `asked` or the default, within what the limit of open
/// files leaves. The soft limit is raised to the hard one, as a connection takes one descriptor and
/// the usual soft limit is 1024.
pub(crate) fn max_connections(asked: Option<usize>) -> usize {
    let files = raise_open_files().unwrap_or(usize::MAX);
    let room = files.saturating_sub(OTHER_FILES).max(files / 2);
    if let Some(asked) = asked.filter(|asked| *asked > room) {
        notice(format_args!(
            "warning: --max-connections {asked} is {room} here: the limit of open files is {files} (ulimit -n)"
        ));
    }
    asked.unwrap_or(DEFAULT_CONNECTIONS).min(room)
}

/// Reads of up to 1 KiB from a refused connection: more than the request of an honest client.
const MAX_REFUSED_READS: usize = 64;

/// Accepts connections and serves each in its own task.
pub(crate) async fn accept(
    listener: Listener,
    router: Router,
    state: Arc<ServerState>,
) -> Infallible {
    let mut refusals = RefusalLog::default();
    let refused = Arc::new(Semaphore::new(MAX_REFUSED));
    loop {
        let stream = match listener.accept().await {
            Ok(accepted) => accepted,
            // The client gave up between its handshake and the accept.
            Err(error) if is_of_client(&error) => continue,
            Err(error) => {
                if let Some(line) = refusals.record(&error, Instant::now()) {
                    notice(line);
                }
                tokio::time::sleep(REFUSAL_PAUSE).await;
                continue;
            }
        };
        match (state.body_limits.budget.connection(), refused.clone().try_acquire_owned()) {
            (Some(held), _) => {
                let (router, counted) = (router.clone(), state.lifecycle.count());
                tokio::spawn(connection::serve(stream, router, state.clone(), counted, held));
            }
            (None, Ok(place)) if state.tls.is_none() => {
                state.metrics.responded(503);
                tokio::spawn(async move {
                    let _ = timeout(REFUSAL_TIMEOUT, refuse(&stream)).await;
                    drop((stream, place));
                });
            }
            // Closed without a word; so is one whose answer would need a handshake.
            (None, _) => state.metrics.responded(503),
        }
    }
}

/// Tells a client that there is no room for its connection, and reads until it has closed it: a
/// connection closed on unread bytes is reset, which loses the answer.
async fn refuse(stream: &Socket) -> io::Result<()> {
    let error = ApiError::no_connection().body().to_string();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: {RETRY_SECONDS}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{error}",
        error.len()
    );
    // The buffer of a new socket has room for it.
    stream.ready(Interest::WRITABLE).await?;
    stream.try_write(response.as_bytes())?;
    let mut unread = [0; 1024];
    // A socket that always has more to read never makes this task wait: bounded, and with a pause.
    for _ in 0..MAX_REFUSED_READS {
        stream.ready(Interest::READABLE).await?;
        match stream.try_read(&mut unread) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => tokio::task::yield_now().await,
        }
    }
    Ok(())
}

fn is_of_client(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Failed accepts since the last log line.
#[derive(Default)]
struct RefusalLog {
    logged: Option<Instant>,
    failed: u64,
}

impl RefusalLog {
    /// Records a failure; returns the line to log, at most once per interval.
    fn record(&mut self, error: &io::Error, now: Instant) -> Option<String> {
        self.failed += 1;
        if self.logged.is_some_and(|logged| now - logged < REFUSAL_LOG_INTERVAL) {
            return None;
        }
        let failed = std::mem::take(&mut self.failed);
        self.logged = Some(now);
        Some(format!(
            "warning: cannot accept connections ({failed} attempts failed): {error}; raise the limit of open files (ulimit -n) or lower --idle-timeout"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_accepts_are_logged_once_a_minute() {
        let (mut log, start) = (RefusalLog::default(), Instant::now());
        let error = io::Error::other("too many");
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(log.record(&error, at(0)).is_some());
        assert_eq!(log.record(&error, at(1)), None);
        assert_eq!(log.record(&error, at(59)), None);
        let line = log.record(&error, at(60)).expect("a line");
        assert!(line.contains("3 attempts") && line.contains("too many"), "{line}");
    }
}
