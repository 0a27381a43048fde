//! A model to serve, and how it is loaded again.

use std::path::Path;

use trail_cli::{Error, ModelArgs, NamedAdapter, RankingArgs, Setup};
use trail_runtime::engine::Engine;

/// A model's files and options, as an engine.
pub type Loaded = (Setup, Engine);

/// Loads a model's files again, with an engine of as many KV blocks, whose counters go on.
pub type LoadAgain = Box<dyn Fn() -> Result<Loaded, Error> + Send + Sync>;

/// A model to serve.
pub struct ModelSource {
    /// Names in requests; the first is that of responses.
    pub names: Vec<String>,
    /// Adapters that requests can choose by their names.
    pub adapters: Vec<NamedAdapter>,
    /// The model as the server starts with it.
    pub loaded: Loaded,
    /// Loads it after it was unloaded.
    pub load: LoadAgain,
    /// Options of the policies that it can be set to, before those of its probe's file.
    pub ranking: RankingArgs,
}

impl ModelSource {
    /// The model at `path` (a folder, a file, or `hf:OWNER/NAME` of the hub), under its own name,
    /// on the engine that `build` makes; both again after it was unloaded, which
    /// [`ServerOptions::idle_unload`](crate::ServerOptions::idle_unload) asks for: then `build`
    /// names as many KV blocks each time.
    ///
    /// # Errors
    ///
    /// The model cannot be loaded, or its engine not be built.
    pub fn open(
        path: &Path,
        build: impl Fn(&Setup) -> Result<Engine, Error> + Send + Sync + 'static,
    ) -> Result<ModelSource, Error> {
        let model = ModelArgs::default().with_model(Some(path));
        let load = move || {
            let setup = Setup::load(&model)?;
            let engine = build(&setup)?;
            Ok((setup, engine))
        };
        let loaded: Loaded = load()?;
        let names = vec![loaded.0.name.clone()];
        let ranking = RankingArgs::default();
        Ok(ModelSource { names, adapters: Vec::new(), loaded, load: Box::new(load), ranking })
    }
}
