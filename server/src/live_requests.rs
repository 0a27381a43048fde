//! `/v1/requests`: the live requests of the caller; an admin, or a server without keys, sees all.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde::Serialize;
use trail_scheduler::Decision;
use utoipa::ToSchema;

use crate::access::Access;
use crate::error::ApiError;
use crate::live::{LiveFrame, LiveRow, Owner};
use crate::state::{ServerState, Shared};

/// A live HTTP request.
#[derive(Serialize, ToSchema)]
pub(crate) struct LiveRequest {
    /// Its `x-request-id`.
    id: String,
    object: &'static str,
    model: String,
    /// The answers that have not ended.
    choices: Vec<LiveChoice>,
}

/// The live requests, in the scheduler's order.
#[derive(Serialize, ToSchema)]
pub(crate) struct LiveRequestList {
    object: &'static str,
    data: Vec<LiveRequest>,
}

/// A live answer.
#[derive(Serialize, ToSchema)]
struct LiveChoice {
    index: usize,
    /// Its number in the engine, which decisions and reasons name.
    key: u64,
    /// `waiting`, `prefill`, `running`, `paused` or `swapped`.
    state: &'static str,
    /// 0 in the batch, else its place among those that wait.
    queue_position: usize,
    prompt_tokens: u32,
    computed_tokens: u32,
    generated_tokens: u32,
    max_tokens: u32,
    /// Median.
    #[schema(required)]
    remaining_tokens: Option<f32>,
    /// The interval of 80 %.
    #[schema(required)]
    remaining_interval: Option<[f32; 2]>,
    /// Low, median and high of the interval of 80 %; null once it was sent.
    #[schema(required)]
    first_token_ms: Option<[u64; 3]>,
    #[schema(required)]
    eta_ms: Option<u64>,
    #[schema(required)]
    eta_interval_ms: Option<[u64; 2]>,
    /// Why it waits.
    #[schema(required)]
    reason: Option<String>,
    priority: i32,
    preemptions: u32,
    evictions: u32,
    /// The scheduler's decisions about it, the last 64, as in a decision log.
    #[schema(value_type = Vec<serde_json::Value>)]
    decisions: Vec<Decision>,
}

/// A cancelled request.
#[derive(Serialize, ToSchema)]
pub(crate) struct Cancelled {
    id: String,
    object: &'static str,
    cancelled: bool,
}

impl LiveChoice {
    fn new(frame: &LiveFrame, row: &LiveRow, owner: &Owner) -> LiveChoice {
        let request = &row.request;
        let [first, last] = row.times_ms(0.0);
        LiveChoice {
            index: owner.index,
            key: request.id.0,
            state: row.state(),
            queue_position: row.place,
            prompt_tokens: request.prompt_tokens,
            computed_tokens: request.computed,
            generated_tokens: request.generated,
            max_tokens: request.max_tokens,
            remaining_tokens: row.remaining,
            remaining_interval: row.interval,
            first_token_ms: first,
            eta_ms: last.map(|[_, median, _]| median),
            eta_interval_ms: last.map(|[low, _, high]| [low, high]),
            reason: frame.reason(row),
            priority: request.priority,
            preemptions: request.preemptions,
            evictions: request.evictions,
            decisions: row.decisions.to_vec(),
        }
    }
}

/// True if a caller with `access` may see what `owner` has.
pub(crate) fn may_see(access: &Access, owner: &Owner) -> bool {
    access.key().is_none_or(|key| key.is_admin || owner.key.as_ref() == Some(&key.name))
}

/// The frames of the loaded models, with the models' names.
fn frames(state: &ServerState) -> Vec<(String, Arc<LiveFrame>)> {
    let entries = state.models.all().iter();
    entries.filter_map(|entry| Some((entry.name().to_owned(), entry.live_frame()?))).collect()
}

/// The live requests that `access` may see.
fn visible(state: &ServerState, access: &Access) -> Vec<LiveRequest> {
    let mut requests: Vec<LiveRequest> = Vec::new();
    for (model, frame) in frames(state) {
        for row in &frame.rows {
            let Some(owner) = row.owner.as_ref().filter(|owner| may_see(access, owner)) else {
                continue;
            };
            let choice = LiveChoice::new(&frame, row, owner);
            match requests.iter_mut().find(|of| of.id == owner.id && of.model == model) {
                Some(request) => request.choices.push(choice),
                None => requests.push(LiveRequest {
                    id: owner.id.clone(),
                    object: "request",
                    model: model.clone(),
                    choices: vec![choice],
                }),
            }
        }
    }
    requests
}

/// Lists the live requests.
pub(crate) async fn list(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
) -> Json<LiveRequestList> {
    Json(LiveRequestList { object: "list", data: visible(&state, &access) })
}

/// Returns the live request `id`.
pub(crate) async fn retrieve(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    Path(id): Path<String>,
) -> Result<Json<LiveRequest>, ApiError> {
    let found = visible(&state, &access).into_iter().find(|request| request.id == id);
    found.map(Json).ok_or_else(|| ApiError::no_such_request(&id))
}

/// Cancels the live request `id`: all that have the id and are the caller's.
pub(crate) async fn cancel(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    Path(id): Path<String>,
) -> Result<Json<Cancelled>, ApiError> {
    let mut found = false;
    for (_, frame) in frames(&state) {
        let owners = frame.rows.iter().filter_map(|row| row.owner.as_ref());
        let owners = owners.filter(|owner| owner.id == id && may_see(&access, owner));
        for request in owners.filter_map(|owner| owner.access.upgrade()) {
            request.cancel();
            found = true;
        }
    }
    match found {
        true => Ok(Json(Cancelled { id, object: "request", cancelled: true })),
        false => Err(ApiError::no_such_request(&id)),
    }
}
