//! The endpoints as an axum router, for an application that listens on sockets itself.

use std::sync::Arc;

use axum::Router;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use trail_cli::Error;
use trail_runtime::engine::Fault;

use crate::cors::Origins;
use crate::lifecycle::Phase;
use crate::listener;
use crate::memory_budget::MemoryBudget;
use crate::model_source::ModelSource;
use crate::request_head::HeadRules;
use crate::server_options::ServerOptions;
use crate::state::ServerState;
use crate::{Routes, served_models, thrash_watch};

/// The endpoints of served models, to nest in an application's own router.
///
/// The application listens, and ends: it checks the Host of requests if it listens on a loopback
/// address, and waits for open responses. It also looks for [`Api::fault`], after
/// which it starts again. Files of keys are read once. Dropping this ends its background tasks, so
/// it is kept while its router serves.
pub struct Api {
    state: Arc<ServerState>,
    router: Router,
    _tasks: JoinSet<()>,
}

impl Api {
    /// Opens the endpoints of `models`. Called within a tokio runtime, which also runs the tasks in
    /// the background.
    ///
    /// Of `options`, `timeouts` but for those of bodies, and `allowed_hosts`, are a listener's and
    /// change nothing here; `root_path` is the path where the router is nested, for
    /// `/openapi.json`. `max_connections` raises the process's limit of open files, and bounds the
    /// memory of bodies.
    ///
    /// # Errors
    ///
    /// Options that contradict each other, files that cannot be read, a socket or a certificate
    /// among the options, and no runtime.
    pub fn open(models: Vec<ModelSource>, options: ServerOptions) -> Result<Api, Error> {
        if options.uds.is_some() || options.tls.is_some() {
            return Err(Error::usage(
                "the API of an application has no listener: leave out the options uds and tls, \
                 and let the application's own listener have them",
            ));
        }
        Handle::try_current().map_err(|_| {
            Error::failed("the API needs a tokio runtime: open it within one, in async code")
        })?;
        let origins = Origins::new(&options.cors_origins)?;
        let allowed_hosts = options.allowed_hosts.clone();
        let (protects_metrics, idle_unload) = (options.protect_metrics, options.idle_unload);
        let budget = MemoryBudget::new(listener::max_connections(options.max_connections));
        let state = Arc::new(ServerState::new(models, options, budget.clone())?);
        let mut tasks = JoinSet::new();
        tasks.spawn(budget.release_memory());
        tasks.spawn(thrash_watch::run(state.clone()));
        if let Some(idle) = idle_unload {
            tasks.spawn(served_models::unload_idle(state.clone(), idle));
        }
        let rules =
            HeadRules { is_loopback: false, allowed_hosts, takes_json_alone: true, origins };
        let router = Routes::of_models().guarded(state.clone(), rules, protects_metrics);
        Ok(Api { state, router, _tasks: tasks })
    }

    /// The endpoints, for [`Router::nest`] or [`Router::merge`].
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Refuses further requests with 503; those that run go on.
    pub fn drain(&self) {
        self.state.lifecycle.enter(Phase::Draining);
    }

    /// Ends the requests that run, each with an error object, and refuses further ones.
    pub fn cut(&self) {
        self.state.lifecycle.enter(Phase::Cut);
    }

    /// The error of an engine that broke down: its requests fail from then on, and only a new
    /// process brings it back.
    pub fn fault(&self) -> Option<Fault> {
        self.state.models.fault()
    }

    /// Requests in the engines.
    pub fn live(&self) -> u32 {
        self.state.live()
    }
}
