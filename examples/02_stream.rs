//! Example 2: Streams answers in async code: the engine has no async runtime, and its events wake
//! the task of any. Here two answers under tokio, and the same two under smol.
//!
//! `cargo run --release --example 02_stream`

use std::error::Error;
use std::future::poll_fn;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use trail_runtime::engine::{Engine, EngineConfig, Event, Request, RequestHandle, SubmitError};
use trail_runtime::model::Model;
use trail_runtime::text::{ChatMessage, ChatOptions, ChatTemplate, TextStream, Tokenizer};

/// The events of one request. Dropping it cancels the request.
struct EventStream {
    handle: RequestHandle,
    waker: Arc<Mutex<Option<Waker>>>,
    ended: bool,
}

impl EventStream {
    fn submit(engine: &Engine, mut request: Request) -> Result<EventStream, SubmitError> {
        let waker = Arc::new(Mutex::new(None::<Waker>));
        let notified = waker.clone();
        // Called on the engine's thread after each event.
        request.notify = Some(Arc::new(move || {
            if let Some(waker) = notified.lock().expect("no panic").take() {
                waker.wake();
            }
        }));
        Ok(EventStream { handle: engine.submit(request)?, waker, ended: false })
    }

    /// The next event; `None` after the last one.
    async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| {
            if self.ended {
                return Poll::Ready(None);
            }
            // First the waker: an event that arrives in between wakes it.
            *self.waker.lock().expect("no panic") = Some(context.waker().clone());
            let Some(event) = self.handle.try_recv() else { return Poll::Pending };
            self.ended = matches!(event, Event::Finished { .. });
            Poll::Ready(Some(event))
        })
        .await
    }
}

/// A model with its engine and text.
struct Llm {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
}

impl Llm {
    fn load(folder: &Path) -> Result<Llm, Box<dyn Error>> {
        let model = Arc::new(Model::load(folder)?);
        let tokenizer = Arc::new(Tokenizer::load(folder, model.config.vocab_size)?);
        let engine = Engine::new(model, EngineConfig::default())?;
        Ok(Llm { engine, tokenizer, template: ChatTemplate::load(folder)? })
    }

    /// The answer to `prompt`, of the pieces that arrive.
    async fn answer(&self, prompt: &str) -> Result<String, Box<dyn Error>> {
        let turn = ChatMessage::new("user", prompt);
        let tokens = self.template.encode(&self.tokenizer, &[turn], ChatOptions::default())?;
        let mut request = Request::new(tokens, 32);
        request.sampling.temperature = 0.0;
        let mut events = EventStream::submit(&self.engine, request)?;
        let mut text = TextStream::new(self.tokenizer.clone());
        let mut answer = String::new();
        while let Some(event) = events.next().await {
            match event {
                Event::Token { id, .. } => answer += &text.push(id),
                Event::Finished { .. } => answer += &text.flush(),
                _ => {}
            }
        }
        Ok(answer)
    }
}

/// Prints the answers.
pub fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Streams the answers to two prompts at once, by each runtime.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let llm = Llm::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo")))?;
    let prompts = ["Tell me a story about a cat.", "Count from 3 to 9."];
    let both = async || {
        let answers = (llm.answer(prompts[0]), llm.answer(prompts[1]));
        let (first, second) = smol::future::zip(answers.0, answers.1).await;
        Ok::<_, Box<dyn Error>>([first?, second?])
    };
    let tokio = tokio::runtime::Builder::new_current_thread().build()?;
    for (name, texts) in [("tokio", tokio.block_on(both())?), ("smol", smol::block_on(both())?)] {
        for (prompt, text) in prompts.iter().zip(texts) {
            writeln!(out, "{name}: {prompt} -> {}", text.trim().replace('\n', " "))?;
        }
    }
    Ok(())
}
