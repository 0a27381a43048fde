//! One client's connection: HTTP/1.1 over a stream with bounded waits, and its end in a shutdown.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::activity::{Activity, OpenRequest};
use crate::lifecycle::{Counted, Phase};
use crate::state::ServerState;
use crate::timed_stream::TimedStream;

/// Largest header of a request, and most of a response that waits to be written, bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Time for a request that was sent before the drain to be read. Without it the close of a
/// connection resets a request that is already in the socket's buffer.
const LAST_REQUEST_GRACE: Duration = Duration::from_millis(100);

/// The body of a response: keeps its request open until it is sent or dropped.
struct TrackedBody {
    body: Body,
    _request: OpenRequest,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection to its end. Once the server drains, a counted connection that has no
/// complete header after [`LAST_REQUEST_GRACE`] is closed, another after its response; one that is
/// not counted arrived during the drain and has one request. Errors end the connection alone: the
/// client left, was too slow, or broke a rule of HTTP.
pub(crate) async fn serve(
    stream: TcpStream,
    router: Router,
    state: Arc<ServerState>,
    counted: Option<Counted>,
) {
    let activity = Arc::new(Activity::default());
    let stream = TimedStream::new(stream, activity.clone(), state.timeouts);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let open = activity.begin();
        let response = router.call(request);
        async {
            let response = response.await?;
            Ok::<_, std::convert::Infallible>(
                response.map(|body| TrackedBody { body, _request: open }),
            )
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            // `TimedStream` tells a slow header from an idle connection.
            .header_read_timeout(None)
            .max_buf_size(BUFFER_BYTES)
            .keep_alive(counted.is_some())
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        _ = connection.as_mut() => return,
        () = state.lifecycle.reached(Phase::Draining), if counted.is_some() => {}
    }
    if activity.is_quiet() {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = sleep(LAST_REQUEST_GRACE) => {}
        }
        if activity.is_quiet() {
            return;
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
