//! `GET /v1/trail/live`: the live requests of a model as server-sent events, for the page.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior};

use crate::access::Access;
use crate::error::ApiError;
use crate::lifecycle::Phase;
use crate::live::{COLUMNS, EVERY_S, LiveFrame, LiveRow};
use crate::live_requests::may_see;
use crate::model_entry::ModelEntry;
use crate::state::{ServerState, Shared};

/// Least time between two frames, in the mean.
const PERIOD: Duration = Duration::from_millis(100);

/// Time between two looks for a frame that is due.
const POLL: Duration = Duration::from_millis(10);

/// Time after which a viewer hears that nothing has changed.
const IDLE_PERIOD: Duration = Duration::from_secs(2);

/// Requests of a frame.
const MAX_ROWS: usize = 1000;

/// Query of the endpoint.
#[derive(Deserialize)]
pub(crate) struct Which {
    /// One of the model's names.
    pub model: Option<String>,
}

/// Frames as text, by what the viewer may see: all viewers with the same view have one.
#[derive(Default)]
pub(crate) struct FrameTexts(Mutex<HashMap<View, (u64, Arc<str>)>>);

/// A model's name, and the name of a user's key; `None` for viewers who see all.
type View = (String, Option<String>);

impl FrameTexts {
    /// The text of `frame` of model `name` for a viewer with `access`.
    fn text(&self, name: &str, model: &ModelEntry, frame: &LiveFrame, access: &Access) -> Arc<str> {
        let viewer = access.key().filter(|key| !key.is_admin).map(|key| key.name.clone());
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, text) =
            texts.entry((name.to_owned(), viewer)).or_insert_with(|| (u64::MAX, "".into()));
        if *number != frame.number {
            let shown = serde_json::to_string(&Shown::new(name, model, frame, access));
            // A number that is not finite has no form in JSON: serde_json writes null.
            (*number, *text) = (frame.number, shown.unwrap_or_default().into());
        }
        text.clone()
    }
}

/// A frame as the page reads it.
#[derive(Serialize)]
struct Shown<'a> {
    t: f64,
    model: &'a str,
    policy: String,
    device: String,
    max_running: usize,
    running: usize,
    waiting: usize,
    blocks: Blocks,
    step_ms: Option<f64>,
    step_limit_ms: Option<f64>,
    tokens_per_s: Option<f64>,
    mae: Option<f64>,
    hit_rate: Option<f64>,
    eta_coverage: Option<f64>,
    omitted: usize,
    requests: Vec<ShownRow<'a>>,
}

#[derive(Serialize)]
struct Blocks {
    used: u64,
    total: u64,
}

#[derive(Serialize)]
struct ShownRow<'a> {
    id: Option<&'a str>,
    key: u64,
    state: &'static str,
    place: usize,
    prompt: u32,
    computed: u32,
    generated: u32,
    max: u32,
    remaining: Option<f32>,
    interval: Option<[f32; 2]>,
    first_ms: Option<[u64; 3]>,
    last_ms: Option<[u64; 3]>,
    preemptions: u32,
    reason: Option<String>,
}

impl<'a> Shown<'a> {
    fn new(name: &'a str, model: &ModelEntry, frame: &'a LiveFrame, access: &Access) -> Shown<'a> {
        let rates = frame.history.rates(frame.now_s, &frame.stats);
        let of = model.live_settings();
        let (running, max_running) = frame.batch;
        Shown {
            t: frame.now_s,
            model: name,
            policy: of.policy,
            device: of.device,
            max_running,
            running,
            waiting: frame.rows.len() - running,
            blocks: Blocks { used: frame.blocks.0, total: frame.blocks.1 },
            step_ms: rates.step_ms,
            step_limit_ms: of.step_limit_ms,
            tokens_per_s: rates.tokens_per_s,
            mae: frame.stats.prediction_window.map(|window| window.mae),
            hit_rate: rates.hit_rate,
            eta_coverage: frame.coverage,
            omitted: frame.rows.len().saturating_sub(MAX_ROWS),
            requests: frame
                .rows
                .iter()
                .take(MAX_ROWS)
                .map(|row| ShownRow::new(frame, row, access))
                .collect(),
        }
    }
}

impl<'a> ShownRow<'a> {
    fn new(frame: &LiveFrame, row: &'a LiveRow, access: &Access) -> ShownRow<'a> {
        let request = &row.request;
        let [first_ms, last_ms] = row.times_ms(0.0);
        let owner = row.owner.as_ref().filter(|owner| may_see(access, owner));
        ShownRow {
            id: owner.map(|owner| &*owner.id),
            key: request.id.0,
            state: row.state(),
            place: row.place,
            prompt: request.prompt_tokens,
            computed: request.computed,
            generated: request.generated,
            max: request.max_tokens,
            remaining: row.remaining,
            interval: row.interval,
            first_ms,
            last_ms,
            preemptions: request.preemptions,
            reason: frame.reason(row),
        }
    }
}

/// A viewer's place in the stream.
struct Viewer {
    state: Arc<ServerState>,
    access: Arc<Access>,
    model: Arc<ModelEntry>,
    name: String,
    /// Number of the frame sent last; `None` before the history was sent.
    sent: Option<u64>,
    /// Number of the comparison of policies sent last.
    compared: Option<u64>,
    /// Times of frames.
    ticks: Interval,
}

impl Viewer {
    /// Waits for the next event; `None` when the server is cut.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Viewer)> {
        let mut cut = self.state.lifecycle.watch();
        let mut waited = Duration::ZERO;
        if self.sent.is_some() {
            tokio::select! {
                _ = self.ticks.tick() => {}
                () = cut.reached(Phase::Draining) => return None,
            }
        }
        loop {
            let what_if = self.model.what_if().and_then(|of| of.ask());
            if let Some((number, text)) = what_if.filter(|of| Some(of.0) != self.compared)
                && self.sent.is_some()
            {
                self.compared = Some(number);
                return Some((Ok(Event::default().event("whatif").data(&*text)), self));
            }
            let frame = self.model.live_frame().unwrap_or_default();
            let event = match self.sent {
                None => {
                    let rows = frame.history.rows();
                    let history = json!({"every_s": EVERY_S, "columns": COLUMNS, "rows": rows});
                    self.sent = Some(u64::MAX);
                    Some(Event::default().event("history").data(history.to_string()))
                }
                Some(sent) if sent != frame.number || waited >= IDLE_PERIOD => {
                    self.sent = Some(frame.number);
                    let texts = &self.state.frame_texts;
                    let text = texts.text(&self.name, &self.model, &frame, &self.access);
                    Some(Event::default().event("frame").data(&*text))
                }
                Some(_) => None,
            };
            if let Some(event) = event {
                return Some((Ok(event), self));
            }
            // A frame comes when a step ends, somewhat before or after a tick.
            let pause = if waited < PERIOD { POLL } else { PERIOD };
            tokio::select! {
                () = tokio::time::sleep(pause) => waited += pause,
                () = cut.reached(Phase::Draining) => return None,
            }
        }
    }
}

/// Streams the frames of a model. Slow viewers miss some.
pub(crate) async fn stream(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    Query(which): Query<Which>,
) -> Result<impl IntoResponse, ApiError> {
    let model = match which.model {
        Some(name) => state.models.find(Some(&name))?.clone(),
        None => state.models.first().clone(),
    };
    let name = model.name().to_owned();
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (sent, compared) = (None, None);
    let viewer = Viewer { state: state.clone(), access, model, name, sent, compared, ticks };
    let events = stream::unfold(viewer, Viewer::next);
    let events = Sse::new(events).keep_alive(KeepAlive::default());
    Ok(([("x-accel-buffering", "no")], events))
}
