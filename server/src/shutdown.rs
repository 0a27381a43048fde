//! Shutdown: the first signal drains up to a deadline, the second exits at once; an engine failure
//! drains as well.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use trail_cli::{Error, notice};

use crate::lifecycle::Phase;
use crate::state::ServerState;

/// Interval of checks for an engine failure.
const FAULT_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time for the error objects of cut answers to be written.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Handlers of SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers; from here on the signals no longer end the process.
    pub(crate) fn listen() -> Result<Self, Error> {
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

/// Completes once the engine has failed.
async fn breakdown(state: &ServerState) {
    while state.engine.fault().is_none() {
        sleep(FAULT_POLL_INTERVAL).await;
    }
}

/// Waits for a signal or an engine failure, then until every connection has got its response, or
/// the deadline has cut it. A second signal ends the process. The error of a cut makes the exit
/// code 1, so that a supervisor can tell it from a complete drain.
pub(crate) async fn run(mut signals: Signals, state: Arc<ServerState>) -> Result<(), Error> {
    tokio::select! {
        () = signals.next() => {
            let live = state.engine.live();
            notice(format_args!("trail-rt finishes {live} requests; a second signal ends it at once"));
        }
        // Every open request gets the error. The process exits, for its supervisor to restart it.
        () = breakdown(&state) => {}
    }
    state.lifecycle.enter(Phase::Draining);
    let cut = tokio::select! {
        cut = drain(&state) => cut,
        () = signals.next() => std::process::exit(1),
    };
    match (state.engine.fault(), cut) {
        (Some(fault), _) => Err(Error::failed(format!("the engine broke down: {fault}"))),
        (None, 0) => Ok(()),
        (None, cut) => {
            let seconds = state.timeouts.drain.as_secs();
            Err(Error::failed(format!(
                "{cut} responses were cut after {seconds} s: raise --drain-seconds to let them finish"
            )))
        }
    }
}

/// Lets the accepted requests finish until the deadline, then ends the others. Returns the number
/// of connections whose response was cut.
async fn drain(state: &ServerState) -> usize {
    let life = &state.lifecycle;
    tokio::select! {
        () = life.all_closed() => return 0,
        () = sleep(state.timeouts.drain) => {}
    }
    let cut = life.connections();
    life.enter(Phase::Cut);
    tokio::select! {
        () = life.all_closed() => {}
        () = sleep(CUT_GRACE) => {}
    }
    cut
}
