//! One client's connection: HTTP/1.1 over a stream with bounded waits, and its end in a shutdown.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Version;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::activity::{Activity, OpenRequest};
use crate::client_watch;
use crate::lifecycle::{Counted, Phase};
use crate::memory_budget::Held;
use crate::state::ServerState;
use crate::timed_stream::TimedStream;

/// Largest header of a request, and most of a response that waits to be written, bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// Time for a request that was sent before the drain to be read. Without it the close of a
/// connection resets a request that is already in the socket's buffer.
const LAST_REQUEST_GRACE: Duration = Duration::from_millis(100);

/// A server-sent event without content, which clients skip.
const COMMENT: &[u8] = b":\n\n";

/// The body of a response: keeps its request open until it is sent or dropped.
struct TrackedBody {
    body: Body,
    /// True for a stream of events; each event is a frame.
    has_events: bool,
    request: OpenRequest,
}

impl TrackedBody {
    fn of(response: Response, request: OpenRequest) -> hyper::Response<TrackedBody> {
        request.answer();
        let media_type = response.headers().get(CONTENT_TYPE);
        let has_events = media_type.is_some_and(|value| value == "text/event-stream");
        response.map(|body| TrackedBody { body, has_events, request })
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.has_events && self.request.activity().take_comment() {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection to its end: that of its last response, or until its client leaves.
pub(crate) async fn serve(
    stream: TcpStream,
    router: Router,
    state: Arc<ServerState>,
    counted: Option<Counted>,
    _held: Held,
) {
    let activity = Arc::new(Activity::default());
    tokio::select! {
        // The watch comes second: it begins with the request that the first has just read.
        biased;
        () = answer(&stream, &activity, router, &state, counted) => {}
        () = client_watch::left(&stream, &activity) => {}
    }
}

/// Answers requests until the connection ends. Once the server drains, a counted connection that
/// has no complete header after [`LAST_REQUEST_GRACE`] is closed, another after its response; one
/// that is not counted arrived during the drain and has one request. Errors end the connection
/// alone: the client left, was too slow, or broke a rule of HTTP.
async fn answer(
    stream: &TcpStream,
    activity: &Arc<Activity>,
    router: Router,
    state: &ServerState,
    counted: Option<Counted>,
) {
    let stream = TimedStream::new(stream, activity.clone(), state.timeouts);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let open = activity.begin(request.version() >= Version::HTTP_11);
        let response = router.call(request);
        async { Ok::<_, Infallible>(TrackedBody::of(response.await?, open)) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            // `TimedStream` tells a slow header from an idle connection.
            .header_read_timeout(None)
            .max_buf_size(BUFFER_BYTES)
            .keep_alive(counted.is_some())
            // A client that writes no more may still read: `client_watch`.
            .half_close(true)
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
