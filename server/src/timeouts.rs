//! Upper bounds of the waits for a client, and of the shutdown.

use std::time::Duration;

/// Time limits of the server. The defaults are nginx's (header and body 60 s, keep-alive 75 s, send
/// 60 s), with hyper's 30 s for a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of a request's header to its last.
    pub header: Duration,
    /// From the start of reading a request's body to its last byte.
    pub body: Duration,
    /// Between two requests of a connection, and before its first.
    pub idle: Duration,
    /// Without progress of a response's write, as when the client does not read.
    pub write: Duration,
    /// From the signal that ends the server until unfinished responses are cut.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            header: Duration::from_secs(30),
            body: Duration::from_secs(60),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}
