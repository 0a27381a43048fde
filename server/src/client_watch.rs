//! The watch for a client that leaves during its request.
//!
//! hyper does not read while it answers, and bytes behind the request would hide the end of the
//! stream from it, so the socket itself is watched. A reset is seen at once. A FIN alone says only
//! that the client writes no more: it may still read (half-closed, as `nc -N`) or have closed the
//! socket. The two are told apart by something sent, which a closed socket answers with a reset: a
//! comment in a stream of events, the interim response `100 Continue` before an answer of HTTP/1.1,
//! which every client skips (RFC 9110, 15.2.1). HTTP/1.0 knows no interim response: there a FIN
//! ends the request, as clients and proxies that use it close the whole socket. So it does before
//! an answer over TLS, into which the watch cannot write.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::Interest;
use tokio::time::{Instant, sleep};

use crate::activity::{Activity, Stage};
use crate::socket::Socket;

/// Interval of checks for a FIN during a request.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two probes of a client that is half-closed: it may close its socket later.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Completes once the client of `stream` has left during a request.
pub(crate) async fn left(stream: &Socket, activity: &Activity) {
    loop {
        activity.begun().await;
        // The last probe, and the number of its request.
        let mut probed: Option<(u32, Instant)> = None;
        while activity.is_in_request() {
            tokio::select! {
                _ = stream.ready(Interest::ERROR) => return,
                () = sleep(CHECK_INTERVAL) => {}
            }
            let request = activity.requests();
            let is_known = probed
                .is_some_and(|(number, at)| number == request && at.elapsed() < PROBE_INTERVAL);
            if is_known || !is_read_closed(stream) {
                continue;
            }
            probed = Some((request, Instant::now()));
            if !probe(stream, activity) {
                return;
            }
        }
    }
}

/// Returns true once a FIN has arrived, whatever bytes before it are still to be read.
fn is_read_closed(stream: &Socket) -> bool {
    let ready = stream.ready(Interest::READABLE).now_or_never();
    matches!(ready, Some(Ok(ready)) if ready.is_read_closed())
}

/// Sends something that a closed socket answers with a reset. Returns false if the client is
/// known to be gone without it.
fn probe(stream: &Socket, activity: &Activity) -> bool {
    match activity.stage() {
        Stage::Idle => true,
        Stage::Answering => {
            activity.request_comment();
            true
        }
        Stage::Waiting { takes_interim: false } => false,
        // Bytes that wait to be written come first; the write has its own limit.
        Stage::Waiting { .. } if activity.is_write_blocked() => true,
        Stage::Waiting { .. } => match stream.try_write(INTERIM) {
            Ok(sent) => sent == INTERIM.len(),
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        },
    }
}
