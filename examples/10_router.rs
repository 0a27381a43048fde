//! Example 10: The HTTP router inside an axum application: its endpoints below a path of one's own,
//! beside routes of the application.
//!
//! `cargo run --release --example 10_router -- 127.0.0.1:8080`
//!
//! then `curl http://127.0.0.1:8080/llm/v1/completions -d '{"prompt": "Once upon a time"}'`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use trail_runtime::engine::{Engine, EngineConfig, PolicyKind, with_rank_options};
use trail_server::{Api, ModelSource, ServerOptions};

/// The application: its own page, and the model's endpoints below `/llm`.
///
/// The [`Api`] is kept while the application serves.
pub fn application() -> Result<(Router, Api), Box<dyn Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let source = ModelSource::open(folder, |setup| {
        let config = EngineConfig {
            probe: setup.probe()?,
            predictor: setup.predictor()?,
            // As the program serves `trail`: with the options that the probe's training chose.
            policy: with_rank_options(PolicyKind::trail(0.8), setup.rank_options()?),
            ..EngineConfig::default()
        };
        Ok(Engine::new(setup.model.clone(), config)?)
    })?;
    let options = ServerOptions { root_path: "/llm".into(), ..ServerOptions::default() };
    let api = Api::open(vec![source], options)?;
    let app = Router::new().route("/", get(async || "a page of the application\n"));
    Ok((app.nest("/llm", api.router()), api))
}

/// Serves at the address given as an argument until Ctrl-C.
#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    let (app, api) = application()?;
    let api = Arc::new(api);
    let stopping = api.clone();
    let listener = TcpListener::bind(&address).await?;
    println!("http://{}/llm", listener.local_addr()?);
    let stop = async move {
        let _ = tokio::signal::ctrl_c().await;
        // Running answers end, or axum would wait for each.
        stopping.cut();
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    Ok(())
}
