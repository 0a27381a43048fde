//! Signals of the process: those of Unix, or what a Windows console sends in their place.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

/// A signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalKind {
    /// SIGINT; Ctrl-C on Windows.
    Interrupt,
    /// SIGTERM; on Windows Ctrl-Break, the end of the console, and the shutdown of the system.
    Terminate,
    /// SIGHUP; never on Windows.
    Hangup,
    /// SIGQUIT; never on Windows.
    Quit,
    /// SIGXFSZ, of a write beyond the limit of a file's size; never on Windows.
    FileSize,
}

impl SignalKind {
    /// The code with which a process exits that the signal ended: 128 and the signal's number on
    /// Linux, and the same on every system.
    pub fn exit_code(self) -> i32 {
        128 + match self {
            SignalKind::Interrupt => 2,
            SignalKind::Terminate => 15,
            SignalKind::Hangup => 1,
            SignalKind::Quit => 3,
            SignalKind::FileSize => 25,
        }
    }
}

/// The handler of one kind of signal. It stays when this is dropped: the signal has its default
/// effect no more.
#[derive(Debug)]
pub struct Signal(system::Signal);

impl Signal {
    /// Installs the handler, within a runtime of tokio that has its drivers.
    pub fn listen(kind: SignalKind) -> io::Result<Signal> {
        system::Signal::listen(kind).map(Signal)
    }

    /// Ready for each signal that has come since the last call.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_recv(context)
    }

    /// Waits for the next signal.
    pub async fn recv(&mut self) {
        poll_fn(|context| self.poll_recv(context)).await;
    }
}

#[cfg(unix)]
mod system {
    use std::io;
    use std::task::{Context, Poll, ready};

    use tokio::signal::unix;

    use super::SignalKind;

    #[derive(Debug)]
    pub(super) struct Signal(unix::Signal);

    impl Signal {
        pub(super) fn listen(kind: SignalKind) -> io::Result<Signal> {
            let kind = match kind {
                SignalKind::Interrupt => unix::SignalKind::interrupt(),
                SignalKind::Terminate => unix::SignalKind::terminate(),
                SignalKind::Hangup => unix::SignalKind::hangup(),
                SignalKind::Quit => unix::SignalKind::quit(),
                SignalKind::FileSize => unix::SignalKind::from_raw(libc::SIGXFSZ),
            };
            unix::signal(kind).map(Signal)
        }

        pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<()> {
            match ready!(self.0.poll_recv(context)) {
                Some(()) => Poll::Ready(()),
                // No signal comes any more.
                None => Poll::Pending,
            }
        }
    }
}

#[cfg(windows)]
mod system {
    use std::io;
    use std::task::{Context, Poll};

    use tokio::signal::windows::{
        CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
    };

    use super::SignalKind;

    #[derive(Debug)]
    pub(super) enum Signal {
        Interrupt(CtrlC),
        /// Once these have come, Windows ends the process after some seconds, drained or not.
        Terminate(CtrlBreak, CtrlClose, CtrlShutdown),
        Never,
    }

    impl Signal {
        pub(super) fn listen(kind: SignalKind) -> io::Result<Signal> {
            Ok(match kind {
                SignalKind::Interrupt => Signal::Interrupt(ctrl_c()?),
                SignalKind::Terminate => {
                    Signal::Terminate(ctrl_break()?, ctrl_close()?, ctrl_shutdown()?)
                }
                SignalKind::Hangup | SignalKind::Quit | SignalKind::FileSize => Signal::Never,
            })
        }

        pub(super) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<()> {
            let came = match self {
                Signal::Interrupt(signal) => signal.poll_recv(context).is_ready(),
                Signal::Terminate(first, close, shutdown) => {
                    first.poll_recv(context).is_ready()
                        || close.poll_recv(context).is_ready()
                        || shutdown.poll_recv(context).is_ready()
                }
                Signal::Never => false,
            };
            if came { Poll::Ready(()) } else { Poll::Pending }
        }
    }
}
