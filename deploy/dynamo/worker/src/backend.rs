//! Dynamo's engine trait over the token engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use dynamo_backend_common::{
    BackendError, DynamoError, EngineConfig, ErrorType, GenerateContext, KvEventSource, LLMEngine,
    LLMEngineOutput, LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest, chunk,
};
use dynamo_runtime::component::Endpoint;
use dynamo_runtime::traits::DistributedRuntimeProvider;
use futures::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use tokio::task::JoinHandle;
use trail_runtime::engine::{Event, FinishReason, SubmitError};

use crate::engine::{Answer, TokenEngine};
use crate::job::{Job, job};
use crate::kv_events::KvEvents;
use crate::load_book::{BookEntry, LoadBook};
use crate::reports;

/// Dynamo's name of the limits by which a router refuses a prompt before it looks for a worker: it
/// hashes a prompt of any length first, for minutes if it is long enough, and others wait.
const TOKEN_BUDGET: &str = "token_budget";

/// Longest silence of a stream. Dynamo takes a silent worker for a hanging one, and a preempted
/// request is silent for as long as the policy says.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Time after the last answer in which Dynamo's tasks write its end to the router. Nothing tells
/// when they have, and a task that the process's exit ends loses it (one of 12 runs of a drain).
const FLUSH: Duration = Duration::from_millis(500);

/// Interval of checks for a breakdown of the engine.
const FAULT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The worker's engine as Dynamo drives it.
pub struct TrailBackend {
    /// Name of the model.
    name: String,
    /// `None` after cleanup.
    engine: Mutex<Option<Arc<TokenEngine>>>,
    events: KvEvents,
    book: Arc<LoadBook>,
    reports: Mutex<Option<JoinHandle<()>>>,
    worker_id: Mutex<u64>,
    /// The cause of a breakdown, once it is seen.
    breakdown: Arc<OnceLock<String>>,
    /// Longest wait for running requests at shutdown.
    drain: Duration,
}

impl TrailBackend {
    /// A worker that serves `engine`, which reports its blocks to `events`, as model `name`.
    pub fn new(
        name: String,
        engine: TokenEngine,
        events: KvEvents,
        drain: Duration,
    ) -> TrailBackend {
        TrailBackend {
            name,
            engine: Mutex::new(Some(Arc::new(engine))),
            events,
            book: Arc::default(),
            reports: Mutex::default(),
            worker_id: Mutex::default(),
            breakdown: Arc::default(),
            drain,
        }
    }

    /// The cause of the breakdown that ended the worker.
    pub fn breakdown(&self) -> Option<&String> {
        self.breakdown.get()
    }

    fn engine(&self) -> Result<Arc<TokenEngine>, DynamoError> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone();
        engine.ok_or_else(|| fault(BackendError::EngineShutdown, "the worker has shut down"))
    }
}

#[async_trait]
impl LLMEngine for TrailBackend {
    async fn start(&self, worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let engine = self.engine()?;
        *self.worker_id.lock().unwrap_or_else(PoisonError::into_inner) = worker_id;
        let context = engine.limits().context;
        let budget = serde_json::json!({"combined_limit": context, "reject_prompt_overflow": true});
        Ok(EngineConfig {
            model: self.name.clone(),
            runtime_data: HashMap::from([(TOKEN_BUDGET.to_owned(), budget)]),
            llm: Some(LlmRegistration {
                context_length: Some(context),
                kv_cache_block_size: Some(trail_scheduler::BLOCK_TOKENS),
                total_kv_blocks: Some(engine.blocks().0.into()),
                max_num_seqs: Some(engine.slots().into()),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        })
    }

    async fn on_endpoint_ready(&self, endpoint: Endpoint) -> Result<(), DynamoError> {
        let worker_id = *self.worker_id.lock().unwrap_or_else(PoisonError::into_inner);
        let (engine, breakdown) = (self.engine()?, self.breakdown.clone());
        let runtime = endpoint.drt().runtime().clone();
        let reports = reports::publish(endpoint, worker_id, engine.clone(), self.book.clone());
        let task = async move {
            // The reports of a broken engine would be those of an idle one.
            tokio::select! {
                fault = breaks_down(&engine) => {
                    tracing::error!("the engine broke down, the worker ends: {fault}");
                    let _ = breakdown.set(fault);
                    runtime.shutdown();
                }
                () = reports.then(|()| std::future::pending()) => {}
            }
        };
        *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = Some(tokio::spawn(task));
        Ok(())
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        Ok(vec![self.events.source()])
    }

    /// Adds the gauge of predicted work to `/metrics` of the system port.
    async fn setup_metrics(&self, ctx: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let book = self.book.clone();
        ctx.metrics.add_expfmt_callback(Arc::new(move || Ok(book.exposition())));
        Ok(MetricsBindings::default())
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        ctx: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let engine = self.engine()?;
        let wants_logprobs = request.output_options.logprobs.is_some();
        let job = job(request, ctx.metadata(), ctx.id(), &engine.limits()).map_err(invalid)?;
        let request = match job {
            Job::Run(request) => *request,
            Job::Complete(reason) => {
                return Ok(futures::stream::iter([terminal(reason)]).boxed());
            }
        };
        let submit = || engine.submit(request);
        let answer = match engine.predicts_slowly() {
            true => tokio::task::block_in_place(submit),
            false => submit(),
        };
        let answer = answer.map_err(refusal)?;
        let entry = self.book.enter(answer.age, answer.remaining);
        Ok(stream(answer, entry, ctx, wants_logprobs).boxed())
    }

    /// Lets the requests end first: Dynamo calls it when the worker has left discovery, and awaits
    /// nothing else of one that is not a prefill worker. Those that are left move.
    async fn cleanup(&self) -> Result<(), DynamoError> {
        let deadline = Instant::now() + self.drain;
        while !self.book.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(FLUSH).await;
        if let Some(task) = self.reports.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    async fn health_check_payload(&self) -> Result<Option<serde_json::Value>, DynamoError> {
        Ok(Some(serde_json::json!({
            "token_ids": [1],
            "stop_conditions": {"max_tokens": 1, "ignore_eos": true},
        })))
    }
}

/// Completes with the cause once the engine has broken down.
async fn breaks_down(engine: &TokenEngine) -> String {
    loop {
        if let Some(fault) = engine.fault() {
            return fault;
        }
        tokio::time::sleep(FAULT_POLL_INTERVAL).await;
    }
}

/// The chunks of an answer. Dropping the stream, on whatever path, frees the request's slot.
fn stream(
    mut answer: Answer,
    entry: BookEntry,
    ctx: GenerateContext,
    wants_logprobs: bool,
) -> impl futures::Stream<Item = Result<LLMEngineOutput, DynamoError>> + Send {
    async_stream::stream! {
        loop {
            let event = tokio::select! {
                biased;
                _ = ctx.stopped() => Event::Finished { reason: FinishReason::Cancelled },
                event = answer.next() => event,
                _ = tokio::time::sleep(HEARTBEAT) => {
                    yield Ok(heartbeat());
                    continue;
                }
            };
            entry.record(&event);
            match event {
                Event::Token { id, logprob } => {
                    let mut token = chunk::token(id);
                    token.log_probs = wants_logprobs.then(|| vec![logprob.into()]);
                    yield Ok(token);
                }
                Event::Finished { reason } => {
                    yield terminal(reason);
                    break;
                }
                Event::PromptToken { .. }
                | Event::Alternative { .. }
                | Event::Prediction { .. }
                | Event::Preempted { .. } => {}
            }
        }
    }
}

/// A chunk without a token. Dynamo's HTTP layer drops chunks without content before it looks at its
/// clock, in completions; the router asks there for `engine_data`, which is content.
fn heartbeat() -> LLMEngineOutput {
    let engine_data = Some(serde_json::json!({"heartbeat": true}));
    LLMEngineOutput { engine_data, ..LLMEngineOutput::default() }
}

/// The last chunk. It counts no tokens: Dynamo does, and would take the prompt of a request that
/// moved, which holds what was generated before, for the client's. Errors that another worker can
/// make good are of the types that Dynamo migrates.
fn terminal(reason: FinishReason) -> Result<LLMEngineOutput, DynamoError> {
    match reason {
        FinishReason::Stop => Ok(LLMEngineOutput::stop()),
        FinishReason::Length => Ok(LLMEngineOutput::length()),
        FinishReason::Cancelled => Ok(LLMEngineOutput::cancelled()),
        FinishReason::Shutdown | FinishReason::Failed => {
            Err(fault(BackendError::EngineShutdown, format!("the engine ended: {}", reason.name())))
        }
        FinishReason::Overloaded => Err(overloaded("the engine is full")),
        FinishReason::Error => {
            Ok(LLMEngineOutput::error("the logits of the model are not finite".into()))
        }
        FinishReason::Constraint => {
            Ok(LLMEngineOutput::error("the constraint leaves no token to go on with".into()))
        }
    }
}

fn refusal(error: SubmitError) -> DynamoError {
    match &error {
        SubmitError::Failed(_) => fault(BackendError::EngineShutdown, error.to_string()),
        error if error.is_full() => overloaded(error.to_string()),
        _ => invalid(error.to_string()),
    }
}

/// The refusal of a request for what it asks. Without a public message the client would learn only
/// that something is invalid.
fn invalid(message: String) -> DynamoError {
    let kind = ErrorType::Backend(BackendError::InvalidArgument);
    DynamoError::builder().error_type(kind).public_message(&message).message(message).build()
}

fn fault(kind: BackendError, message: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(kind)).message(message).build()
}

fn overloaded(message: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::WorkerOverloaded).message(message).build()
}

#[cfg(test)]
mod tests {
    use dynamo_backend_common::testing::run_conformance;
    use trail_runtime::engine::StepCost;
    use trail_scheduler::SchedulerConfig;
    use trail_scheduler::policies::PolicyKind;
    use trail_simulator::Noise;

    use super::*;
    use crate::sim::{SimEngine, SimSettings};

    fn backend() -> TrailBackend {
        let cost = StepCost {
            fixed: 1e6,
            decode_row: 0.0,
            prefill_token: 0.0,
            context_token: 0.0,
            experts: None,
        };
        let events = KvEvents::default();
        let engine = SimEngine::start(SimSettings {
            scheduler: SchedulerConfig {
                max_running: 4,
                max_context: 20_000,
                num_blocks: 4096,
                cached_blocks: 4096,
                ..SchedulerConfig::default()
            },
            policy: PolicyKind::trail(0.8),
            cost,
            noise: Noise::Release,
            alphabet: (100..162).collect(),
            block_sink: events.sink(),
            break_after: None,
        });
        let engine = TokenEngine::Sim(Box::new(engine.expect("valid sizes")));
        TrailBackend::new("sim".into(), engine, events, Duration::ZERO)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dynamos_conformance_kit_holds() {
        run_conformance(backend).await.expect("the contract of Dynamo's engines");
    }
}
