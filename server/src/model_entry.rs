//! One of the served models over time: loaded, unloaded, and loaded again for the next request.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use trail_cli::{Error, RankingArgs, described_policy, notice};
use trail_platform::heap::release_free_pages;
use trail_runtime::engine::{Counters, Fault, Stats};
use trail_runtime::model::Adapter;
use utoipa::ToSchema;

use crate::adapters::Adapters;
use crate::error::ApiError;
use crate::live::{LiveFrame, WhatIf};
use crate::metrics::{ModelMetrics, ModelReport};
use crate::model_source::{LoadAgain, ModelSource};
use crate::served_model::{Formats, ServedModel};

/// A served model.
pub(crate) struct ModelEntry {
    /// Names of the model: that of responses, and others of requests.
    pub names: Vec<String>,
    /// The model's adapters.
    pub adapters: Adapters,
    /// Metrics of its answers.
    pub metrics: ModelMetrics,
    /// Tokens that a request has room for.
    pub capacity: usize,
    counters: Arc<Counters>,
    kv_blocks: u64,
    formats: Formats,
    ranking: RankingArgs,
    load: LoadAgain,
    state: watch::Sender<State>,
    /// Each use is a receiver of this channel, which carries nothing.
    uses: watch::Sender<()>,
    last_use: Mutex<Instant>,
}

/// Settings of an engine that the page shows; empty for a model that is not loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveSettings {
    pub policy: String,
    pub device: String,
    /// Longest gap between two tokens that prefill may cause.
    pub step_limit_ms: Option<f64>,
}

enum State {
    Loaded(Arc<ServedModel>),
    Loading,
    /// The uses end, then the engine.
    Unloading,
    Unloaded {
        /// The last load failed for this reason.
        failure: Option<String>,
    },
}

/// The state of a model, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModelState {
    Loaded,
    Loading,
    Unloading,
    Unloaded,
}

impl State {
    fn shown(&self) -> ModelState {
        match self {
            State::Loaded(_) => ModelState::Loaded,
            State::Loading => ModelState::Loading,
            State::Unloading => ModelState::Unloading,
            State::Unloaded { .. } => ModelState::Unloaded,
        }
    }

    /// True until the load or the unload in progress has ended.
    fn is_changing(&self) -> bool {
        matches!(self, State::Loading | State::Unloading)
    }
}

impl ModelEntry {
    /// The entry of `source`, whose names and adapters are not among the names `taken`.
    pub(crate) fn new(
        source: ModelSource,
        taken: &[String],
        allows_updates: bool,
        formats: Formats,
    ) -> Result<Arc<ModelEntry>, Error> {
        let ModelSource { names, adapters, loaded: (setup, engine), load, ranking } = source;
        let (counters, kv_blocks) = (engine.counters().clone(), engine.kv_blocks() as u64);
        let model = Arc::new(ServedModel::new(setup, engine, formats, ranking)?);
        Ok(Arc::new(ModelEntry {
            names,
            adapters: Adapters::new(adapters, taken, allows_updates)?,
            metrics: ModelMetrics::new()?,
            capacity: model.capacity,
            counters,
            kv_blocks,
            formats,
            ranking,
            load,
            state: watch::Sender::new(State::Loaded(model)),
            uses: watch::Sender::new(()),
            last_use: Mutex::new(Instant::now()),
        }))
    }

    /// The model's name in responses.
    pub(crate) fn name(&self) -> &str {
        &self.names[0]
    }

    /// True if `name` is one of the model's names.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }

    /// The model's state.
    pub(crate) fn state(&self) -> ModelState {
        self.state.borrow().shown()
    }

    /// A figure of the model, if it is loaded. This is no use of it, and keeps it no longer.
    pub(crate) fn of_loaded<T>(&self, of: impl FnOnce(&ServedModel) -> T) -> Option<T> {
        match &*self.state.borrow() {
            State::Loaded(model) => Some(of(model)),
            _ => None,
        }
    }

    /// The last frame of the model's live answers; `None` for one that is not loaded.
    pub(crate) fn live_frame(&self) -> Option<Arc<LiveFrame>> {
        self.of_loaded(|model| model.live.frame())
    }

    /// Comparison of the model's traffic with other policies.
    pub(crate) fn what_if(&self) -> Option<Arc<WhatIf>> {
        self.of_loaded(|model| model.live.what_if().clone())
    }

    /// Settings of the model's engine that the page shows.
    pub(crate) fn live_settings(&self) -> LiveSettings {
        let of = |model: &ServedModel| LiveSettings {
            policy: described_policy(model.engine.policy()),
            device: model.engine.device().to_owned(),
            step_limit_ms: model.engine.max_gap().map(|gap| gap.as_secs_f64() * 1e3),
        };
        self.of_loaded(of).unwrap_or_default()
    }

    /// Counters of the model's engines, past ones included.
    pub(crate) fn stats(&self) -> Stats {
        self.counters.snapshot(self.kv_blocks)
    }

    /// The model at a scrape.
    pub(crate) fn report(&self) -> ModelReport<'_> {
        let failed = match &*self.state.borrow() {
            State::Loaded(model) => model.engine.predictor().map_or(0, |of| of.failures()),
            _ => 0,
        };
        ModelReport {
            name: self.name(),
            metrics: &self.metrics,
            stats: self.stats(),
            failed,
            eta_coverage: self.live_frame().and_then(|frame| frame.coverage),
        }
    }

    /// Requests in the engine.
    pub(crate) fn live(&self) -> u32 {
        match &*self.state.borrow() {
            State::Loaded(model) => model.engine.live(),
            _ => 0,
        }
    }

    /// The failure of the engine, if any.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match &*self.state.borrow() {
            State::Loaded(model) => model.engine.fault().cloned(),
            _ => None,
        }
    }

    /// The model, which is loaded first if it is not. Requests that arrive during a load wait for
    /// that one, and have its error if it fails; the next request tries again.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<ModelUse, ApiError> {
        let mut state = self.state.subscribe();
        let mut has_waited = false;
        loop {
            match &*state.borrow() {
                // Counted before it can be taken from the state.
                State::Loaded(model) => {
                    let (model, counted) = (model.clone(), self.uses.subscribe());
                    return Ok(ModelUse { model, entry: self.clone(), counted });
                }
                State::Unloaded { failure: Some(why) } if has_waited => {
                    return Err(ApiError::not_loaded(self.name(), why));
                }
                _ => {}
            }
            self.begin_load();
            // The sender is `self`'s.
            let _ = state.wait_for(|state| !state.is_changing()).await;
            has_waited = true;
        }
    }

    /// Begins to load the model if it is unloaded. The load goes on if its request has left.
    fn begin_load(self: &Arc<Self>) {
        let begins = self.state.send_if_modified(|state| {
            let begins = matches!(state, State::Unloaded { .. });
            if begins {
                *state = State::Loading;
            }
            begins
        });
        if begins {
            tokio::spawn(self.clone().load());
        }
    }

    async fn load(self: Arc<Self>) {
        let (begin, entry) = (Instant::now(), self.clone());
        let load = move || {
            let (setup, engine) = (entry.load)()?;
            ServedModel::new(setup, engine, entry.formats, entry.ranking)
        };
        let loaded = match spawn_blocking(load).await {
            Ok(loaded) => loaded.map_err(|error| error.to_string()),
            // The panic hook has reported it.
            Err(_) => Err("its load panicked".to_owned()),
        };
        self.touch();
        let name = self.name();
        let state = match loaded {
            Ok(model) => {
                let seconds = begin.elapsed().as_secs_f64();
                notice(format_args!("model '{name}' was loaded in {seconds:.1} s"));
                State::Loaded(Arc::new(model))
            }
            Err(why) => {
                notice(format_args!("warning: model '{name}' could not be loaded: {why}"));
                State::Unloaded { failure: Some(why) }
            }
        };
        self.state.send_replace(state);
    }

    /// Unloads the model once the requests that use it have ended, and returns after that. Requests
    /// that arrive meanwhile wait, and load it again.
    pub(crate) async fn unload(self: &Arc<Self>) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| !matches!(state, State::Loading)).await;
        self.begin_unload(|| true);
        let _ = state.wait_for(|state| !matches!(state, State::Unloading)).await;
    }

    /// Unloads the model if no request has used it for `idle`.
    pub(crate) fn unload_idle(self: &Arc<Self>, idle: Duration) {
        let last_use = || *self.last_use.lock().unwrap_or_else(PoisonError::into_inner);
        self.begin_unload(|| self.uses.is_closed() && last_use().elapsed() >= idle);
    }

    /// Begins to unload the model if it is loaded, and the `condition` holds while no use begins.
    fn begin_unload(self: &Arc<Self>, condition: impl FnOnce() -> bool) {
        let mut taken = None;
        self.state.send_if_modified(|state| {
            if let State::Loaded(model) = state
                && condition()
            {
                taken = Some(model.clone());
                *state = State::Unloading;
            }
            taken.is_some()
        });
        if let Some(model) = taken {
            tokio::spawn(self.clone().end(model));
        }
    }

    /// Ends the engine of `model` after the last use.
    async fn end(self: Arc<Self>, model: Arc<ServedModel>) {
        self.uses.closed().await;
        let end = move || {
            drop(model);
            release_free_pages();
        };
        // The panic hook has reported a panic.
        let _ = spawn_blocking(end).await;
        notice(format_args!("model '{}' was unloaded", self.name()));
        self.state.send_replace(State::Unloaded { failure: None });
    }

    fn touch(&self) {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A use of a loaded model, which is not unloaded before its end.
pub(crate) struct ModelUse {
    // Before the count, so that no use is left when none is counted.
    model: Arc<ServedModel>,
    entry: Arc<ModelEntry>,
    counted: watch::Receiver<()>,
}

impl Clone for ModelUse {
    fn clone(&self) -> Self {
        let (model, entry) = (self.model.clone(), self.entry.clone());
        ModelUse { model, entry, counted: self.counted.clone() }
    }
}

impl Deref for ModelUse {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.model
    }
}

impl Drop for ModelUse {
    fn drop(&mut self) {
        self.entry.touch();
    }
}

impl ModelUse {
    /// The entry.
    pub(crate) fn entry(&self) -> &ModelEntry {
        &self.entry
    }

    /// The adapter that a request for `name` chooses; `None` for the model as it is. An error if
    /// the name was an adapter's, which was unloaded since.
    pub(crate) fn adapter(&self, name: Option<&str>) -> Result<Option<Arc<Adapter>>, ApiError> {
        let Some(name) = name.filter(|name| !self.entry.has_name(name)) else { return Ok(None) };
        match self.entry.adapters.find(name) {
            Some(served) => Ok(Some(served.of.adapter.clone())),
            None => Err(ApiError::no_such_model(name, &self.entry.names.join("', '"))),
        }
    }

    /// The name in the response to a request for `name`: the adapter's, or the model's first one.
    pub(crate) fn answering_name(&self, name: Option<&str>) -> String {
        let adapter = name.filter(|name| !self.entry.has_name(name));
        adapter.unwrap_or(self.entry.name()).to_owned()
    }
}

#[cfg(test)]
mod tests;
