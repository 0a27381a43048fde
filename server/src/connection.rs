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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;

use crate::activity::{Activity, OpenRequest};
use crate::client_watch;
use crate::lifecycle::{Counted, Phase};
use crate::memory_budget::Held;
use crate::root_path;
use crate::socket::Socket;
use crate::state::ServerState;
use crate::timed_stream::TimedStream;
use crate::tls::Tls;

/// Largest header of a request, and most of a response that waits to be written, bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// Time for a request that was sent before the drain to be read. Without it the close of a
/// connection resets a request that is already in the socket's buffer.
const LAST_REQUEST_GRACE: Duration = Duration::from_millis(100);

/// A server-sent event without content, which clients skip.
const COMMENT: &[u8] = b":\n\n";

/// Marks a response whose body is another server's: nothing comes between its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedOn;

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
        let is_own = response.extensions().get::<PassedOn>().is_none();
        let has_events = is_own && media_type.is_some_and(|value| value == "text/event-stream");
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
    stream: Socket,
    router: Router,
    state: Arc<ServerState>,
    counted: Option<Counted>,
    _held: Held,
) {
    let activity = Arc::new(Activity::default());
    let answers = async {
        let timed = TimedStream::new(&stream, activity.clone(), state.timeouts);
        match state.tls.as_ref().map(Tls::acceptor) {
            None => answer(timed, true, &activity, router, &state, counted).await,
            // A client that does not complete the handshake has the time of a header.
            Some(acceptor) => {
                let handshake = tokio::select! {
                    secured = acceptor.accept(timed) => secured,
                    () = drained(&state), if counted.is_some() => return,
                };
                if let Ok(mut secured) = handshake {
                    secured.get_mut().0.begin_idle();
                    answer(secured, false, &activity, router, &state, counted).await;
                }
            }
        }
    };
    tokio::select! {
        // The watch comes second: it begins with the request that the first has just read.
        biased;
        () = answers => {}
        () = client_watch::left(&stream, &activity) => {}
    }
}

/// Completes when a connection without a request that was accepted before a drain is to be closed.
async fn drained(state: &ServerState) {
    state.lifecycle.reached(Phase::Draining).await;
    sleep(LAST_REQUEST_GRACE).await;
}

/// Answers requests until the connection ends. Once the server drains, a counted connection that
/// has no complete header after [`LAST_REQUEST_GRACE`] is closed, another after its response; one
/// that is not counted arrived during the drain and has one request. Errors end the connection
/// alone: the client left, was too slow, or broke a rule of HTTP. `is_plain` is false for a stream
/// into which nothing else may be written.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    is_plain: bool,
    activity: &Arc<Activity>,
    router: Router,
    state: &ServerState,
    counted: Option<Counted>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        let open = activity.begin(is_plain && request.version() >= Version::HTTP_11);
        root_path::strip(&state.root_path, request.uri_mut());
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
