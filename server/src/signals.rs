//! Signals of the process, handled by a thread of their own: neither the load of a model nor a
//! stalled server keeps them waiting.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::process;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::watch;
use trail_cli::{Error, Signal, SignalKind, flush_notices, notice};

use crate::unix_socket::SocketFile;

/// Time for the last lines to be read from stderr, where a signal ends the process.
const FLUSH_LIMIT: Duration = Duration::from_millis(100);

/// Ends the process without the exit handlers of its libraries, as those of a driver may block.
pub(crate) fn end_at_once(code: u8) -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(code.into());
    // No device can hang there: CUDA runs on Linux alone.
    #[cfg(not(unix))]
    process::exit(code.into());
}

/// Handlers of SIGTERM, SIGINT and SIGHUP. Until the server accepts connections a signal ends the
/// process with 128 and its number, as it would without a handler; as PID 1 of a container the
/// process has no default action. Then the first asks for a drain, and the second ends the process.
/// SIGHUP makes a server with files to reload read them again. Without any it asks for a drain
/// where stderr was a terminal at the start, and is ignored elsewhere, as after `nohup`. A terminal
/// that was closed asks for a drain in any case.
#[derive(Clone, Debug)]
pub struct Signals {
    stage: Arc<watch::Sender<Stage>>,
    /// Sends at each request to reload; nothing is reloaded while there is no receiver.
    reloads: Arc<watch::Sender<()>>,
    /// A socket's file, which the process leaves behind if a signal ends it.
    socket: Arc<OnceLock<Arc<SocketFile>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Loading,
    Serving,
    Draining,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    ///
    /// The thread or a handler could not be made.
    pub fn install() -> Result<Signals, Error> {
        let failed =
            |error: &dyn Display| Error::failed(format!("cannot wait for signals: {error}"));
        let signals = Signals {
            stage: Arc::new(watch::Sender::new(Stage::Loading)),
            reloads: Arc::new(watch::Sender::new(())),
            socket: Arc::default(),
        };
        let (report, installed) = mpsc::channel();
        let handled = signals.clone();
        // After a hangup the closed terminal is none any more.
        let has_terminal = io::stderr().is_terminal();
        thread::Builder::new()
            .name("trail-signals".into())
            .spawn(move || {
                if let Err(error) = handled.listen(has_terminal, &report) {
                    let _ = report.send(Err(error));
                }
            })
            .map_err(|error| failed(&error))?;
        match installed.recv() {
            Ok(Ok(())) => Ok(signals),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(failed(&"the thread ended")),
        }
    }

    /// The server accepts connections.
    pub(crate) fn begin_serving(&self) {
        self.stage.send_replace(Stage::Serving);
    }

    /// The server drains, for whatever reason: the next signal ends the process.
    pub(crate) fn begin_draining(&self) {
        self.stage.send_replace(Stage::Draining);
    }

    /// Removes the file of a socket where a signal ends the process.
    pub(crate) fn remove_at_exit(&self, socket: Arc<SocketFile>) {
        // A server has one.
        let _ = self.socket.set(socket);
    }

    /// Changes at each request to reload files.
    pub(crate) fn reloads(&self) -> watch::Receiver<()> {
        self.reloads.subscribe()
    }

    /// Completes once a signal has asked for a drain.
    pub(crate) async fn drain(&self) {
        // The sender is in `self`, so that the channel stays open.
        let _ = self.stage.subscribe().wait_for(|stage| *stage == Stage::Draining).await;
    }

    /// Acts on signals until the process ends.
    fn listen(&self, has_terminal: bool, report: &mpsc::Sender<io::Result<()>>) -> io::Result<()> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut terminate = Signal::listen(SignalKind::Terminate)?;
            let mut interrupt = Signal::listen(SignalKind::Interrupt)?;
            let mut hangup = Signal::listen(SignalKind::Hangup)?;
            let _ = report.send(Ok(()));
            loop {
                tokio::select! {
                    () = terminate.recv() => self.end(SignalKind::Terminate),
                    () = interrupt.recv() => self.end(SignalKind::Interrupt),
                    () = hangup.recv() => self.hang_up(has_terminal),
                };
            }
        })
    }

    fn hang_up(&self, had_terminal: bool) {
        let is_closed = had_terminal && !io::stderr().is_terminal();
        if !is_closed && self.reloads.receiver_count() > 0 {
            self.reloads.send_replace(());
        } else if !had_terminal {
            notice("SIGHUP is ignored: the server was started without a terminal");
        } else {
            self.end(SignalKind::Hangup);
        }
    }

    fn end(&self, kind: SignalKind) {
        let now = *self.stage.borrow();
        match now {
            Stage::Loading => process::exit(kind.exit_code()),
            Stage::Serving => drop(self.stage.send_replace(Stage::Draining)),
            // A terminal that closes may send several.
            Stage::Draining if kind == SignalKind::Hangup => {}
            Stage::Draining => {
                if let Some(socket) = self.socket.get() {
                    socket.remove();
                }
                flush_notices(FLUSH_LIMIT);
                end_at_once(1);
            }
        }
    }
}
