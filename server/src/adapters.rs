//! The adapters of the served model, by the names under which requests choose them, and the
//! endpoints that load and unload them, by vLLM's names.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use trail_cli::{Error, NamedAdapter, notice};
use utoipa::ToSchema;

use crate::access::Access;
use crate::body::{Admitted, Body};
use crate::error::ApiError;
use crate::model_entry::ModelEntry;
use crate::openapi::Schemas;
use crate::state::{ServerState, Shared, unix_time};

/// Most adapters at once.
const MAX_ADAPTERS: usize = 256;

/// Longest name, bytes.
const MAX_NAME: usize = 256;

/// An adapter that requests can choose.
pub(crate) struct ServedAdapter {
    pub of: NamedAdapter,
    /// When it was loaded, seconds since 1970.
    pub created: u64,
}

/// The adapters, in the order in which they were loaded. A request holds its own until it ends.
pub(crate) struct Adapters {
    current: RwLock<Vec<Arc<ServedAdapter>>>,
    /// Names of models, which no adapter can have.
    taken: Vec<String>,
    /// The endpoints change them.
    allows_updates: bool,
}

impl Adapters {
    /// `loaded` adapters, beside models called `taken`.
    pub(crate) fn new(
        loaded: Vec<NamedAdapter>,
        taken: &[String],
        allows_updates: bool,
    ) -> Result<Adapters, Error> {
        let taken = taken.to_vec();
        let adapters = Adapters { current: RwLock::default(), taken, allows_updates };
        for of in loaded {
            let added = adapters.add(of, false);
            added.map_err(|why| Error::usage(format!("--lora: {why}")))?;
        }
        Ok(adapters)
    }

    /// Adds an adapter, in the place of the one of its name if it `replaces` one; the error is one
    /// line.
    fn add(&self, of: NamedAdapter, replaces: bool) -> Result<(), String> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let place = check_name(&current, &of.name, &self.taken, replaces)?;
        let served = Arc::new(ServedAdapter { of, created: unix_time() });
        match place {
            Some(place) => current[place] = served,
            None => current.push(served),
        }
        Ok(())
    }

    /// All.
    pub(crate) fn all(&self) -> Vec<Arc<ServedAdapter>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The adapter called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedAdapter>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.iter().find(|served| served.of.name == name).cloned()
    }

    /// Removes the adapter called `name`; false if there is none.
    fn remove(&self, name: &str) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let before = current.len();
        current.retain(|served| served.of.name != name);
        current.len() < before
    }
}

/// The place of the adapter called `name`, if a new one `replaces` it. Refuses a name that is
/// taken, and one adapter too many.
fn check_name(
    current: &[Arc<ServedAdapter>],
    name: &str,
    taken: &[String],
    replaces: bool,
) -> Result<Option<usize>, String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!(
            "the name of an adapter has 1 to {MAX_NAME} bytes, not {}",
            name.len()
        ));
    }
    let loaded = current.iter().position(|served| served.of.name == name);
    if replaces && loaded.is_some() {
        return Ok(loaded);
    }
    if loaded.is_some() || taken.iter().any(|taken| taken == name) {
        let what = if loaded.is_some() { "an adapter" } else { "a model" };
        return Err(format!("there is {what} called '{name}' already: choose another name"));
    }
    if current.len() >= MAX_ADAPTERS {
        return Err(format!("{MAX_ADAPTERS} adapters are loaded: unload one first"));
    }
    Ok(None)
}

/// The body of `POST /v1/load_lora_adapter`.
#[derive(Deserialize, ToSchema)]
struct Load {
    lora_name: String,
    /// Folder on the server's machine.
    lora_path: String,
    /// Replaces an adapter of this name; its running requests keep it.
    load_inplace: Option<bool>,
}

/// The body of `POST /v1/unload_lora_adapter`.
#[derive(Deserialize, ToSchema)]
struct Unload {
    lora_name: String,
}

/// The schema of a request that loads one.
pub(crate) fn load_request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Load>()];
    schemas.request("LoadLoraAdapterRequest", parts, &[])
}

/// The schema of a request that unloads one.
pub(crate) fn unload_request(schemas: &mut Schemas) -> Value {
    let parts = vec![schemas.fields::<Unload>()];
    schemas.request("UnloadLoraAdapterRequest", parts, &[])
}

/// Refuses changes where the server was not started for them, and those of users' keys. Returns the
/// model, which is the only one where there are adapters.
fn to_change<'s>(state: &'s ServerState, access: &Access) -> Result<&'s ModelEntry, ApiError> {
    let entry = state.models.first();
    if !entry.adapters.allows_updates {
        return Err(ApiError::forbidden(
            "adapters of this server do not change: start it with --allow-runtime-lora-updating",
        ));
    }
    access.check_admin("adapters")?;
    Ok(entry)
}

/// Loads an adapter, which requests can choose from then on.
pub(crate) async fn load(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<String, ApiError> {
    let entry = to_change(&state, &access)?;
    let (load, mut permit) = admitted.read(|body: &Body| body.read::<Load>()).await?;
    let model = state.model_for(Some(entry.name()), &mut permit).await?;
    if !model.engine.takes_adapters() {
        return Err(ApiError::invalid(
            "adapters are computed on the CPU alone: serve with --device cpu",
        ));
    }
    let Load { lora_name: name, lora_path, load_inplace } = load;
    let replaces = load_inplace.unwrap_or(false);
    let added = move || {
        let taken = |why| ApiError::invalid_field("lora_name", why);
        // Before the files are read; `add` checks again.
        let adapters = &model.entry().adapters;
        check_name(&adapters.all(), &name, &adapters.taken, replaces).map_err(taken)?;
        let config = &model.engine.model().config;
        let of = NamedAdapter::load(&name, Path::new(&lora_path), config)
            .map_err(|error| ApiError::invalid_field("lora_path", error.to_string()))?;
        adapters.add(of, replaces).map_err(taken)?;
        notice(format_args!("adapter '{name}' of {lora_path} was loaded"));
        Ok(format!("Success: LoRA adapter '{name}' added successfully."))
    };
    permit.run(move |_| added()).await?.0
}

/// Removes an adapter. Requests that run with it go on, and its memory is free after the last.
pub(crate) async fn unload(
    State(state): Shared,
    Extension(access): Extension<Arc<Access>>,
    admitted: Admitted,
) -> Result<String, ApiError> {
    let entry = to_change(&state, &access)?;
    let (unload, _) = admitted.read(|body: &Body| body.read::<Unload>()).await?;
    let Unload { lora_name: name } = unload;
    if !entry.adapters.remove(&name) {
        return Err(ApiError::no_such_model(&name, &state.models.names()));
    }
    notice(format_args!("adapter '{name}' was unloaded"));
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
