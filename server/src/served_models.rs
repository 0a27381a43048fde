//! The served models, by the names that requests give.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use trail_cli::Error;
use trail_runtime::engine::Fault;

use crate::error::ApiError;
use crate::model_entry::ModelEntry;
use crate::model_source::ModelSource;
use crate::served_model::Formats;
use crate::state::ServerState;

/// Interval at which idle models are looked for.
const IDLE_POLL: Duration = Duration::from_millis(250);

/// The models, one at least.
pub(crate) struct Models(Vec<Arc<ModelEntry>>);

impl Models {
    /// The models of `sources`, beside one of embeddings called `embedding`.
    pub(crate) fn new(
        sources: Vec<ModelSource>,
        embedding: Option<&str>,
        allows_updates: bool,
        formats: Formats,
    ) -> Result<Models, Error> {
        let entry = |source: ModelSource| {
            let taken = [&source.names[..], embedding.map(str::to_owned).as_slice()].concat();
            ModelEntry::new(source, &taken, allows_updates, formats)
        };
        sources.into_iter().map(entry).collect::<Result<_, _>>().map(Models)
    }

    /// All.
    pub(crate) fn all(&self) -> &[Arc<ModelEntry>] {
        &self.0
    }

    /// The first one: of a server with adapters the only one.
    pub(crate) fn first(&self) -> &Arc<ModelEntry> {
        &self.0[0]
    }

    /// The model that a request for `name` is for, which may be an adapter's. A request without a
    /// name is for the only model.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<&Arc<ModelEntry>, ApiError> {
        let Some(name) = name else {
            return match &self.0[..] {
                [one] => Ok(one),
                _ => Err(ApiError::invalid_field(
                    "model",
                    format!("this server has several models: name one of '{}'", self.names()),
                )),
            };
        };
        let is_of =
            |entry: &&Arc<ModelEntry>| entry.has_name(name) || entry.adapters.find(name).is_some();
        let found = self.0.iter().find(is_of);
        found.ok_or_else(|| ApiError::no_such_model(name, &self.names()))
    }

    /// The names that requests can choose, for messages.
    pub(crate) fn names(&self) -> String {
        let mut names = Vec::new();
        for entry in &self.0 {
            names.extend_from_slice(&entry.names);
            names.extend(entry.adapters.all().iter().map(|served| served.of.name.clone()));
        }
        names.join("', '")
    }

    /// The failure of an engine, if any.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.0.iter().find_map(|entry| entry.fault())
    }
}

/// Unloads the models that have no request for `idle`.
pub(crate) async fn unload_idle(state: Arc<ServerState>, idle: Duration) {
    loop {
        sleep(IDLE_POLL.min(idle)).await;
        state.models.all().iter().for_each(|entry| entry.unload_idle(idle));
    }
}
