//! A client's socket: TCP, or Unix.

use std::io::{IoSlice, Result};
use std::task::{Context, Poll};

use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

use crate::unix_socket::UnixStream;

/// A client's socket. All of its waits and transfers take it by reference, as the watch for the
/// client's leaving has it too.
pub(crate) enum Socket {
    /// From another machine, or this one.
    Tcp(TcpStream),
    /// From this machine.
    Unix(UnixStream),
}

/// Calls a method that both kinds have.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
        }
    };
}

impl Socket {
    /// Waits until the socket can be read.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        either!(self, stream => stream.poll_read_ready(cx))
    }

    /// Waits until the socket can be written.
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        either!(self, stream => stream.poll_write_ready(cx))
    }

    /// Reads without a wait; returns the number of bytes.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Result<usize> {
        either!(self, stream => stream.try_read(buffer))
    }

    /// Writes without a wait; returns the number of bytes.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> Result<usize> {
        either!(self, stream => stream.try_write(bytes))
    }

    /// Writes without a wait; returns the number of bytes.
    pub(crate) fn try_write_vectored(&self, bytes: &[IoSlice<'_>]) -> Result<usize> {
        either!(self, stream => stream.try_write_vectored(bytes))
    }

    /// Waits for one of several states.
    pub(crate) async fn ready(&self, interest: Interest) -> Result<Ready> {
        either!(self, stream => stream.ready(interest).await)
    }
}
