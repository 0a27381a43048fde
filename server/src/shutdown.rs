//! Shutdown: the first signal drains up to a deadline, the second exits at once; an engine failure
//! ends the process within seconds.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::time::sleep;
use trail_cli::{Error, flush_notices, notice};
use trail_runtime::engine::Fault;

use crate::lifecycle::Phase;
use crate::signals::{Signals, end_at_once};
use crate::state::ServerState;

/// Time for the error objects of a failed engine to be read.
const BREAKDOWN_DRAIN: Duration = Duration::from_secs(2);
/// Time from an engine's failure to the end of the process, whatever blocks: each call to a device
/// that hangs does.
const BREAKDOWN_EXIT: Duration = Duration::from_secs(5);
/// Time for the last lines to be read from stderr, where the process is ended.
const FLUSH_LIMIT: Duration = Duration::from_millis(100);
/// Interval of checks for an engine failure.
const FAULT_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time for the error objects of cut answers to be written.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Completes once an engine has failed.
async fn breakdown(state: &ServerState) -> Fault {
    loop {
        match state.models.fault() {
            Some(fault) => return fault,
            None => sleep(FAULT_POLL_INTERVAL).await,
        }
    }
}

/// Waits for a signal or an engine failure, then until every connection has got its response, or
/// the deadline has cut it. A second signal ends the process (`signals`). The error of a cut makes
/// the exit code 1, so that a supervisor can tell it from a complete drain.
pub(crate) async fn run(signals: Signals, state: Arc<ServerState>) -> Result<(), Error> {
    let is_asked = tokio::select! {
        () = signals.drain() => true,
        // Every open request gets the error. The process exits, for its supervisor to restart it.
        _ = breakdown(&state) => false,
    };
    signals.begin_draining();
    state.lifecycle.enter(Phase::Draining);
    if is_asked {
        let live = state.live();
        notice(format_args!("trail-rt finishes {live} requests; a second signal ends it at once"));
    }
    let limit = match state.models.fault() {
        Some(_) => state.timeouts.drain.min(BREAKDOWN_DRAIN),
        None => state.timeouts.drain,
    };
    let watch = async {
        exit_soon(&breakdown(&state).await);
        std::future::pending().await
    };
    let cut = tokio::select! {
        cut = drain(&state, limit) => cut,
        cut = watch => cut,
    };
    match (state.models.fault(), cut) {
        (Some(fault), _) => Err(broke_down(&fault)),
        (None, 0) => Ok(()),
        (None, cut) => {
            let seconds = state.timeouts.drain.as_secs();
            Err(Error::failed(format!(
                "{cut} responses were cut after {seconds} s: raise --drain-seconds to let them finish"
            )))
        }
    }
}

fn broke_down(fault: &Fault) -> Error {
    Error::breakdown(format!("the engine broke down: {fault}"))
}

/// Ends the process after [`BREAKDOWN_EXIT`] if it still runs, without its destructors.
fn exit_soon(fault: &Fault) {
    let error = broke_down(fault);
    let wait = move || {
        thread::sleep(BREAKDOWN_EXIT);
        notice(format_args!("error: {error}"));
        flush_notices(FLUSH_LIMIT);
        end_at_once(error.code());
    };
    // Without a thread to spare the process ends when its destructors have run.
    let _ = thread::Builder::new().name("trail-exit".into()).spawn(wait);
}

/// Lets the accepted requests finish within `limit`, then ends the others. Returns the number of
/// connections whose response was cut.
async fn drain(state: &ServerState, limit: Duration) -> usize {
    let life = &state.lifecycle;
    tokio::select! {
        () = life.all_closed() => return 0,
        () = sleep(limit) => {}
    }
    let cut = life.connections();
    life.enter(Phase::Cut);
    tokio::select! {
        () = life.all_closed() => {}
        () = sleep(CUT_GRACE) => {}
    }
    cut
}
