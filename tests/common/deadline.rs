//! Ends a child process that does not end: a test that waits for it fails instead of hanging.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Longest run of a command, and longest wait for a line of a server: what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// Kills a process [`LIMIT`] after this was made, unless it was dropped before. The end of the
/// process ends every wait for it or for its output.
pub(crate) struct Deadline {
    _dropped: Sender<()>,
}

impl Deadline {
    /// A deadline for the process `pid`, a child that is not yet waited for.
    pub(crate) fn of(pid: u32) -> Deadline {
        let (_dropped, dropped) = channel();
        thread::spawn(move || {
            if dropped.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("process {pid} goes on after {LIMIT:?}: it is killed");
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        });
        Deadline { _dropped }
    }
}

/// Runs a command to its end, at the latest at its deadline, and returns its output.
pub(crate) fn output(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end(command.spawn().expect("the program starts"))
}

/// Waits for the end of `child`, at the latest at its deadline, and returns its output.
pub(crate) fn end(child: Child) -> Output {
    let _deadline = Deadline::of(child.id());
    child.wait_with_output().expect("the program ends")
}
