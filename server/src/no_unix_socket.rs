//! `unix_socket` where the system or its Rust has no Unix sockets: `--uds` is refused.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Stands in for the type of connections.
pub(crate) type UnixStream = tokio::net::TcpStream;

/// A listening socket.
pub(crate) struct UnixSocket {
    pub listener: tokio::net::TcpListener,
    pub file: Arc<SocketFile>,
}

/// The file of a socket.
#[derive(Debug)]
pub(crate) struct SocketFile {
    pub path: PathBuf,
}

impl UnixSocket {
    /// Always an error.
    pub(crate) fn bind(_path: &Path) -> io::Result<Self> {
        let why = "--uds is for Linux and macOS: leave it out, and give --host and --port";
        Err(io::Error::new(ErrorKind::Unsupported, why))
    }
}

impl SocketFile {
    /// Nothing to remove.
    pub(crate) fn remove(&self) {}
}
