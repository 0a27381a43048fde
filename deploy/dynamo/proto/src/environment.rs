//! Defaults of Dynamo's settings, which it reads from the environment alone.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Everything on loopback, and discovery by files: a start on one machine needs no service.
pub const LOOPBACK: [(&str, &str); 7] = [
    ("DYN_DISCOVERY_BACKEND", "file"),
    ("DYN_REQUEST_PLANE", "tcp"),
    ("DYN_EVENT_PLANE", "zmq"),
    ("DYN_TCP_RPC_HOST", "127.0.0.1"),
    ("DYN_TCP_RESPONSE_STREAM_HOST", "127.0.0.1"),
    ("DYN_EVENT_PLANE_HOST", "127.0.0.1"),
    ("DYN_SYSTEM_HOST", "127.0.0.1"),
];

/// Executes this program again, as the same process, with those of `defaults` that are not set.
/// Returns if all are: to set a variable of a running process is unsafe, as other threads read it.
pub fn apply(defaults: &[(&str, &str)]) -> std::io::Result<()> {
    let unset = |name: &str| std::env::var_os(name).is_none();
    if !defaults.iter().any(|(name, _)| unset(name)) {
        return Ok(());
    }
    let missing = defaults.iter().filter(|(name, _)| unset(name)).copied();
    let program = std::env::current_exe()?;
    Err(Command::new(program).args(std::env::args_os().skip(1)).envs(missing).exec())
}
