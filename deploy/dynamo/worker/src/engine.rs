//! The two engines behind one interface.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use trail_cli::{EngineArgs, Setup};
use trail_dynamo_proto::{Order, Pace, Prompts};
use trail_runtime::engine::{
    BlockSink, Engine, Event, FinishReason, Request, RequestHandle, SubmitError,
};
use trail_scheduler::policies::PolicyKind;

use crate::job::Limits;
use crate::sim::SimEngine;

/// An engine that turns tokens into tokens.
pub enum TokenEngine {
    /// The model runs.
    Real(Box<Engine>),
    /// Only the scheduler runs.
    Sim(Box<SimEngine>),
}

impl TokenEngine {
    /// The engine of a loaded model, which reports its blocks to `sink`.
    pub fn real(
        setup: &Setup,
        args: &EngineArgs,
        sink: impl Fn() -> Box<dyn BlockSink>,
    ) -> Result<TokenEngine, trail_cli::Error> {
        Ok(TokenEngine::Real(Box::new(setup.reporting_engine(args, sink)?)))
    }

    /// Begins an answer.
    pub fn submit(&self, mut request: Request) -> Result<Answer, SubmitError> {
        let age = request.generated;
        let (initial, source) = match self {
            TokenEngine::Real(engine) => {
                let ready = Arc::new(Notify::new());
                let notified = ready.clone();
                request.notify = Some(Arc::new(move || notified.notify_one()));
                let handle = engine.submit(request)?;
                (handle.initial_prediction(), Source::Real(handle, ready))
            }
            TokenEngine::Sim(engine) => {
                let (initial, events) = engine.submit(request)?;
                (initial, Source::Sim(events))
            }
        };
        let remaining = initial.map(|tokens| (tokens - age as f32).max(1.0));
        Ok(Answer { source, age, remaining })
    }

    /// True if [`TokenEngine::submit`] takes milliseconds, for a prediction.
    pub fn predicts_slowly(&self) -> bool {
        match self {
            TokenEngine::Real(engine) => engine.predicts_slowly(),
            TokenEngine::Sim(_) => false,
        }
    }

    /// The cause of a breakdown, after which nothing is served.
    pub fn fault(&self) -> Option<String> {
        match self {
            TokenEngine::Real(engine) => engine.fault().map(ToString::to_string),
            TokenEngine::Sim(engine) => engine.has_ended().then(|| "the simulation ended".into()),
        }
    }

    /// Limits that every request must keep.
    pub fn limits(&self) -> Limits {
        match self {
            TokenEngine::Real(engine) => {
                let config = &engine.model().config;
                Limits { context: config.max_context as u32, eos: config.eos_tokens.clone() }
            }
            TokenEngine::Sim(engine) => Limits { context: engine.context(), eos: Vec::new() },
        }
    }

    /// Order in which requests are served: by arrival also while the scheduler distrusts the
    /// predictions.
    pub fn order(&self) -> Order {
        let (policy, distrusts) = match self {
            TokenEngine::Real(engine) => {
                let window = engine.stats().prediction_window;
                (engine.policy(), window.is_some_and(|window| !window.trusted))
            }
            TokenEngine::Sim(engine) => (engine.policy(), false),
        };
        match policy {
            PolicyKind::Fcfs | PolicyKind::Mlfq(_) | PolicyKind::Rr(_) => Order::Fcfs,
            _ if distrusts => Order::Fcfs,
            _ => Order::Sprpt,
        }
    }

    /// Seconds of its steps.
    pub fn pace(&self) -> Pace {
        let (decode_step_s, prefill_token_s) = match self {
            TokenEngine::Real(engine) => {
                let stats = engine.stats();
                (stats.decode_step_s, stats.prefill_token_s)
            }
            TokenEngine::Sim(engine) => engine.pace(),
        };
        let [decode_step_s, prefill_token_s] = [decode_step_s, prefill_token_s].map(|s| s as f32);
        Pace { decode_step_s, prefill_token_s }
    }

    /// Prompt tokens so far.
    pub fn prompts(&self) -> Prompts {
        match self {
            TokenEngine::Real(engine) => {
                let stats = engine.stats();
                Prompts { tokens: stats.prompt_tokens, cached: stats.cached_tokens }
            }
            TokenEngine::Sim(engine) => engine.prompts(),
        }
    }

    /// Most sequences in one step.
    pub fn slots(&self) -> u32 {
        match self {
            TokenEngine::Real(engine) => engine.max_running() as u32,
            TokenEngine::Sim(engine) => engine.slots(),
        }
    }

    /// KV blocks of 16 tokens, and those in use.
    pub fn blocks(&self) -> (u32, u32) {
        match self {
            TokenEngine::Real(engine) => {
                (engine.kv_blocks() as u32, engine.stats().blocks_used as u32)
            }
            TokenEngine::Sim(engine) => engine.blocks(),
        }
    }
}

/// The events of one request. Dropping it cancels the request.
pub struct Answer {
    source: Source,
    /// Output tokens that it had on arrival.
    pub age: u32,
    /// Predicted tokens on arrival; `None` without a prediction.
    pub remaining: Option<f32>,
}

enum Source {
    Real(RequestHandle, Arc<Notify>),
    Sim(UnboundedReceiver<Event>),
}

impl Answer {
    /// The next event. After [`Event::Finished`] there is none.
    pub async fn next(&mut self) -> Event {
        match &mut self.source {
            Source::Real(handle, ready) => loop {
                if let Some(event) = handle.try_recv() {
                    return event;
                }
                ready.notified().await;
            },
            Source::Sim(events) => {
                let shutdown = Event::Finished { reason: FinishReason::Shutdown };
                events.recv().await.unwrap_or(shutdown)
            }
        }
    }
}
