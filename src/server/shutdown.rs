//! Shutdown: the first signal drains, the second exits at once; an engine failure also ends the
//! server.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use trail_setup::{Error, notice};

use super::state::ServerState;

/// Handlers of SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers; from here on the signals no longer end the process.
    pub fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| Error::failed(format!("cannot wait for signals: {error}")))
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Interval of checks for an engine failure.
const FAULT_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Completes once the engine has failed.
async fn breakdown(state: &ServerState) {
    while state.engine.fault().is_none() {
        tokio::time::sleep(FAULT_POLL_INTERVAL).await;
    }
}

/// Completes when the server has to drain. After that, a second signal ends the process.
pub async fn drain_on_signal(mut signals: Signals, state: Arc<ServerState>) {
    tokio::select! {
        _ = signals.next() => {}
        // Every open request gets the error. The process exits, for its supervisor to restart it.
        _ = breakdown(&state) => return,
    }
    state.drain();
    let live = state.engine.live();
    notice(format_args!("trail-rt finishes {live} requests; a second signal ends it at once"));
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(1);
    });
}
