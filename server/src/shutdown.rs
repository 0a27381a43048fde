//! Shutdown: the first signal drains up to a deadline, the second exits at once; an engine failure
//! drains as well.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use trail_cli::{Error, notice};

use crate::lifecycle::Phase;
use crate::signals::Signals;
use crate::state::ServerState;

/// Interval of checks for an engine failure.
const FAULT_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time for the error objects of cut answers to be written.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Completes once an engine has failed.
async fn breakdown(state: &ServerState) {
    while state.models.fault().is_none() {
        sleep(FAULT_POLL_INTERVAL).await;
    }
}

/// Waits for a signal or an engine failure, then until every connection has got its response, or
/// the deadline has cut it. A second signal ends the process (`signals`). The error of a cut makes
/// the exit code 1, so that a supervisor can tell it from a complete drain.
pub(crate) async fn run(signals: Signals, state: Arc<ServerState>) -> Result<(), Error> {
    let is_asked = tokio::select! {
        () = signals.drain() => true,
        // Every open request gets the error. The process exits, for its supervisor to restart it.
        () = breakdown(&state) => false,
    };
    signals.begin_draining();
    state.lifecycle.enter(Phase::Draining);
    if is_asked {
        let live: u32 = state.models.all().iter().map(|entry| entry.live()).sum();
        notice(format_args!("trail-rt finishes {live} requests; a second signal ends it at once"));
    }
    let cut = drain(&state).await;
    match (state.models.fault(), cut) {
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
