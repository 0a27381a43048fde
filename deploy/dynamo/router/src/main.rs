//! The router: Dynamo's HTTP front end with TRAIL's choice of the worker.

#![forbid(unsafe_code)]

mod args;
mod body;
mod edge;
mod hints;
mod intake;
mod members;
mod selection;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use dynamo_kv_router::KvRouterConfig;
use dynamo_kv_router::plugins::RouterPlugins;
use dynamo_llm::entrypoint::{EngineConfig, HttpFrontend, RouterConfig};
use dynamo_llm::local_model::LocalModelBuilder;
use dynamo_runtime::pipeline::RouterMode;
use dynamo_runtime::transports::event_plane::EventSubscriber;
use dynamo_runtime::{DistributedRuntime, Runtime, Worker, logging};
use trail_dynamo_proto::{LOAD_TOPIC, LoadReport, environment};
use trail_dynamo_router::loads::{Loads, Objective};

use args::{Args, HTTP_DRAIN, Policy};
use edge::Edge;
use hints::Hints;
use selection::Measure;

/// Seconds for the rest of a shutdown, after the drain.
const MARGIN: u32 = 10;

/// Time for what Dynamo has answered to reach the clients.
const FLUSH: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args = Args::parse();
    let hang_timeout = args.hang_timeout.to_string();
    let drain = args.drain_seconds.to_string();
    let limit = args.drain_seconds.saturating_add(MARGIN).to_string();
    let mut defaults = environment::LOOPBACK.to_vec();
    // Dynamo leaves a stream that is silent for as long; workers send heartbeats.
    defaults.push(("DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", &hang_timeout));
    defaults.push((HTTP_DRAIN, &drain));
    // Dynamo's limit for all of a shutdown, after which it aborts the process.
    defaults.push(("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", &limit));
    let served = environment::apply(&defaults).map_err(anyhow::Error::from).and_then(|()| {
        logging::init();
        Worker::from_settings()?.execute(move |runtime| serve(runtime, args))
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trail-dynamo-router: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal.
async fn serve(runtime: Runtime, args: Args) -> anyhow::Result<()> {
    let hints = args.predict_with.as_deref().map(Hints::load).transpose()?.map(Arc::new);
    let listener = tokio::net::TcpListener::bind(args.http).await?;
    let address = listener.local_addr()?;
    let distributed = DistributedRuntime::from_settings(runtime).await?;
    let loads = Arc::new(Loads::default());
    tokio::spawn(take_reports(distributed.clone(), args.namespace.clone(), loads.clone()));
    let inner = free_port()?;
    let routes = Edge::new(inner, loads.clone(), hints, args.max_body).routes();
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let edge = axum::serve(listener, routes).with_graceful_shutdown(async {
        let _ = end.await;
    });
    let edge = tokio::spawn(edge.into_future());
    let frontend = frontend(&args, loads).run(distributed, engine_config(&args, inner).await?);
    eprintln!("trail-dynamo-router: serving on http://{address}");
    let served = frontend.await;
    drop(ended);
    let _ = tokio::time::timeout(FLUSH, edge).await;
    served
}

/// Dynamo's front end with the policy that was asked for.
fn frontend(args: &Args, loads: Arc<Loads>) -> HttpFrontend {
    let objective = match args.policy {
        Policy::PredictedWait => Objective::PredictedWait,
        Policy::LeastWork => Objective::LeastWork,
        Policy::Kv | Policy::LeastLoaded | Policy::RoundRobin => return HttpFrontend::default(),
    };
    let (counts_caches, two_choices) = (args.counts_caches(), args.two_choices);
    let factory = selection::factory(loads, Measure { objective, counts_caches, two_choices });
    HttpFrontend::default().plugins(RouterPlugins::default().with_worker_selection(factory))
}

async fn engine_config(args: &Args, inner: SocketAddr) -> anyhow::Result<EngineConfig> {
    let mode = match args.policy {
        Policy::PredictedWait | Policy::LeastWork | Policy::Kv => RouterMode::KV,
        Policy::LeastLoaded => RouterMode::LeastLoaded,
        Policy::RoundRobin => RouterMode::RoundRobin,
    };
    let kv = KvRouterConfig { use_kv_events: args.counts_caches(), ..KvRouterConfig::default() };
    let model = LocalModelBuilder::default()
        .http_host(Some(inner.ip().to_string()))
        .http_port(inner.port())
        .router_config(Some(RouterConfig::new(mode, kv)))
        .migration_limit(Some(args.migration_limit))
        .namespace(Some(args.namespace.clone()))
        .build()
        .await?;
    Ok(EngineConfig::Dynamic {
        model: Box::new(model),
        chat_engine_factory: None,
        prefill_load_estimator: None,
    })
}

/// Takes the workers' reports for as long as the program runs.
async fn take_reports(distributed: DistributedRuntime, namespace: String, loads: Arc<Loads>) {
    let subscribe = async {
        let namespace = distributed.namespace(namespace)?;
        EventSubscriber::for_namespace(&namespace, LOAD_TOPIC).await
    };
    let mut reports = match subscribe.await {
        Ok(subscriber) => subscriber.typed::<LoadReport>(),
        Err(error) => {
            tracing::error!("no load reports, the event plane failed: {error:#}");
            return;
        }
    };
    while let Some(report) = reports.next().await {
        match report {
            Ok((_, report)) => loads.report(report, Instant::now()),
            Err(error) => tracing::warn!("a load report cannot be read: {error:#}"),
        }
    }
}

/// An address on loopback that was free a moment ago: Dynamo binds by number.
fn free_port() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}
