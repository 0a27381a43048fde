//! The end: the first signal drains, the second one ends at once; an engine that broke down ends the server too.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use trail_setup::{Error, notice};

use super::state::ServerState;

/// SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over; from here on they no longer end the process.
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

/// How often to look whether the engine still works.
const LOOK: Duration = Duration::from_millis(250);

/// Completes once the engine has broken down.
async fn breakdown(state: &ServerState) {
    while state.engine.fault().is_none() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Completes when the server shall finish what it has; a further signal ends the process.
pub async fn drain_on_signal(mut signals: Signals, state: Arc<ServerState>) {
    tokio::select! {
        _ = signals.next() => {}
        // Every request has been told, or is being told. Whoever supervises the process starts it anew.
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
