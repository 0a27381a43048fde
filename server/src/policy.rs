//! `/v1/trail/policy`: the scheduling policy of a model, which an admin may change.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trail_cli::{described_policy, notice};
use trail_runtime::engine::PolicyKind;
use utoipa::ToSchema;

use crate::access::Access;
use crate::body::{Admitted, Body};
use crate::error::ApiError;
use crate::live_stream::Which;
use crate::number::Real;
use crate::openapi::Schemas;
use crate::served_model::ServedModel;
use crate::state::{ServerState, Shared};

/// The policy of a model.
#[derive(Serialize, ToSchema)]
pub(crate) struct ServedPolicy {
    /// Name, and parameters that are not the defaults.
    policy: String,
    /// The name alone.
    name: &'static str,
    /// Share of the first prediction in which a request may be preempted, if it has one.
    #[schema(required)]
    c: Option<f32>,
    /// Share of the longest recent wait after which a request is overdue, if it has one; 0: none.
    #[schema(required)]
    tail_bound: Option<f32>,
    /// The policies that the model has what they need for.
    choices: Vec<Choice>,
    /// True if the caller may change it.
    may_change: bool,
}

/// A policy that can be chosen.
#[derive(Serialize, ToSchema)]
#[schema(as = PolicyChoice)]
struct Choice {
    name: &'static str,
    has_c: bool,
    has_tail_bound: bool,
}

/// A change.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Change {
    /// One of the model's names, where there are several models.
    model: Option<String>,
    /// Name and parameters, as `--policy` takes them.
    policy: String,
    #[schema(value_type = Option<f32>, minimum = 0.0, maximum = 1.0)]
    c: Option<Real>,
    #[schema(value_type = Option<f32>, minimum = 0.0)]
    tail_bound: Option<Real>,
}

/// The schema of a change.
pub(crate) fn change_request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Change>()];
    schemas.request("ChangePolicyRequest", parts, &[])
}

impl ServedPolicy {
    fn of(model: &ServedModel, access: &Access) -> ServedPolicy {
        let mut policy = model.engine.policy();
        let names = PolicyKind::HELP.iter().filter_map(|&(name, _)| name.parse().ok());
        let usable = |policy: &PolicyKind| model.engine.check_policy(*policy).is_ok();
        let choice = |mut policy: PolicyKind| Choice {
            name: policy.name(),
            has_c: policy.trail_mut().is_some(),
            has_tail_bound: policy.ranking_mut().is_some(),
        };
        ServedPolicy {
            policy: described_policy(policy),
            name: policy.name(),
            c: policy.trail_mut().map(|trail| trail.c),
            tail_bound: policy.ranking_mut().map(|ranking| ranking.tail_bound),
            choices: names.filter(usable).map(choice).collect(),
            may_change: access.check_admin("the policy").is_ok(),
        }
    }
}

impl Change {
    /// The policy that it asks for, with `model`'s options of the rank.
    fn policy(&self, model: &ServedModel) -> Result<PolicyKind, ApiError> {
        let invalid = |field: &str, why: String| ApiError::invalid_field(field, why);
        let policy = model.policies.policy(&self.policy);
        let mut policy = policy.map_err(|why| invalid("policy", why))?;
        let name = policy.name();
        let has_none = |field| invalid(field, format!("policy {name} has no '{field}'"));
        if let Some(Real(c)) = self.c {
            let trail = policy.trail_mut().ok_or_else(|| has_none("c"))?;
            if !(0.0..=1.0).contains(&c) {
                return Err(invalid("c", format!("'c' is {c}: give a share from 0 to 1")));
            }
            trail.c = c;
        }
        if let Some(Real(tail_bound)) = self.tail_bound {
            let ranking = policy.ranking_mut().ok_or_else(|| has_none("tail_bound"))?;
            if !(0.0..=1e6).contains(&tail_bound) {
                let why = format!("'tail_bound' is {tail_bound}: give a share, 0 or more");
                return Err(invalid("tail_bound", why));
            }
            ranking.tail_bound = tail_bound;
        }
        Ok(policy)
    }
}

/// Asks the model of that name, which is not loaded for this; without a name the only one.
fn of_loaded<T>(
    state: &ServerState,
    name: Option<&str>,
    of: impl FnOnce(&str, &ServedModel) -> T,
) -> Result<T, ApiError> {
    let entry = state.models.find(name)?;
    let name = entry.name();
    entry.of_loaded(|model| of(name, model)).ok_or_else(|| ApiError::unloaded(name))
}

/// Returns the policy.
pub(crate) async fn show(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    Query(which): Query<Which>,
) -> Result<Json<ServedPolicy>, ApiError> {
    let of = |_: &str, model: &ServedModel| ServedPolicy::of(model, &access);
    of_loaded(&state, which.model.as_deref(), of).map(Json)
}

/// Puts the policy back with which the model began.
pub(crate) async fn reset(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    Query(which): Query<Which>,
) -> Result<Json<ServedPolicy>, ApiError> {
    access.check_admin("the policy")?;
    let set = |name: &str, model: &ServedModel| set(name, model, model.policies.first, &access);
    of_loaded(&state, which.model.as_deref(), set)?
}

/// Sets the policy of a model, and says so.
fn set(
    name: &str,
    model: &ServedModel,
    policy: PolicyKind,
    access: &Access,
) -> Result<Json<ServedPolicy>, ApiError> {
    let set = model.engine.set_policy(policy);
    set.map_err(|why| ApiError::invalid_field("policy", why))?;
    let by = access.key().map(|key| format!(" by {}", key.name)).unwrap_or_default();
    notice(format_args!("policy of model '{name}' was set to {}{by}", described_policy(policy)));
    Ok(Json(ServedPolicy::of(model, access)))
}

/// Changes the policy from the next step on. Answers do not depend on it.
pub(crate) async fn change(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<Json<ServedPolicy>, ApiError> {
    access.check_admin("the policy")?;
    let (change, _) = admitted.read(|body: &Body| body.read::<Change>()).await?;
    let set = |name: &str, model: &ServedModel| set(name, model, change.policy(model)?, &access);
    of_loaded(&state, change.model.as_deref(), set)?
}
