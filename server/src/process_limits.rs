//! Limits and priorities of this process, where the system has them.

/// Raises the limit of open files as far as the system lets it; returns the limit, `None` if there
/// is none.
#[cfg(unix)]
pub(crate) fn raise_open_files() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Fails in a sandbox that forbids the call: the server then has the descriptors it was given.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let files = if raised.is_ok() { limit.maximum } else { limit.current };
    files.map(|files| files as usize)
}

/// Windows has no limit of open sockets.
#[cfg(not(unix))]
pub(crate) fn raise_open_files() -> Option<usize> {
    None
}

/// Gives this thread the nice value `nice` for good. A failure costs priority, not the answer.
#[cfg(target_os = "linux")]
pub(crate) fn lower_thread_priority(nice: i32) {
    let _ = rustix::process::setpriority_process(None, nice);
}

/// Elsewhere the call is for the whole process, or there is none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn lower_thread_priority(_nice: i32) {}
