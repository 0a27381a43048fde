//! Options of a server.

use crate::timeouts::Timeouts;

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Time limits.
    pub timeouts: Timeouts,
    /// Connections at once; `None` for the default.
    pub max_connections: Option<usize>,
    /// Writes a line for each request to stderr.
    pub verbose: bool,
    /// Special tokens in messages of users and tools are control tokens.
    pub allow_special_tokens: bool,
    /// Hosts that a request to a loopback address may name besides the loopback ones.
    pub allowed_hosts: Vec<String>,
}
