//! `trail-rt chat`: a conversation in the terminal, or with the lines of stdin.

mod answer_stats;
mod args;
mod conversation;
mod input;
mod message_text;
mod reader;
mod status_line;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use trail_cli::output_file::{GENERATOR, generator};
use trail_cli::{EngineArgs, Error, ModelArgs, Output, OutputFile, Setup, notice};
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::engine::{Engine, Event, FinishReason, Request, RequestHandle, SamplingParams};
use trail_runtime::text::{ChatMessage, ChatOptions, Tokenizer};

use crate::answer;
use crate::interrupt::Interrupt;
use crate::terminal;
use answer_stats::AnswerStats;
pub use args::ChatArgs;
use conversation::Conversation;
use input::{HELP, Input};
use reader::Reader;
use status_line::StatusLine;
use trail_cli::{Detokenizer, TextOptions};

/// The long help.
pub fn about() -> String {
    format!("Talk with the model in the terminal, or with the lines of stdin\n\n{HELP}")
}

/// Longest time between Ctrl-C and the end of the answer.
const POLL: Duration = Duration::from_millis(50);

/// Holds a conversation until the input ends. Answers go to stdout, all else to stderr; with `json`
/// the answers too, and the whole conversation to stdout at the end.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &ChatArgs,
    json: bool,
) -> Result<(), Error> {
    let setup = Setup::load(model)?;
    let mut chat = Chat::new(&setup, engine, args, json)?;
    terminal::restore_on_signals()?;
    let mut reader = Reader::new()?;
    if reader.is_terminal() {
        let context = chat.context;
        let name = &setup.name;
        notice(format_args!("{name}, {context} tokens of context; /help lists the commands"));
    }
    while let Some(text) = reader.read()? {
        match chat.take(text) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            // A person reads the error and goes on. A script cannot.
            Err(error) if reader.is_terminal() => notice(format_args!("error: {error}")),
            Err(error) => return Err(error),
        }
    }
    match json {
        true => Output::stdout().line(&chat.json().to_string()),
        false => Ok(()),
    }
}

/// A conversation with a model.
struct Chat<'a> {
    setup: &'a Setup,
    args: &'a ChatArgs,
    /// Sampling parameters where no option names another.
    sampling: SamplingParams,
    engine: Engine,
    /// Tokens that a conversation has room for: the model's context, or the KV cache if that is
    /// smaller.
    context: usize,
    tokenizer: Arc<Tokenizer>,
    interrupt: Interrupt,
    output: Output,
    conversation: Conversation,
    /// Figures of all answers, /retry included.
    answers: Vec<AnswerStats>,
}

impl<'a> Chat<'a> {
    fn new(
        setup: &'a Setup,
        engine: &EngineArgs,
        args: &'a ChatArgs,
        json: bool,
    ) -> Result<Chat<'a>, Error> {
        if !setup.template.is_present() {
            return Err(Error::usage(format!(
                "{} has no chat template: choose an instruction-tuned model, or continue a text \
                 with trail-rt generate",
                setup.name
            )));
        }
        args.sampling.stops()?;
        let tokenizer = setup.tokenizer()?;
        let engine = setup.engine(engine)?;
        setup.notice_template_limits();
        Ok(Chat {
            setup,
            args,
            sampling: setup.load_sampling_defaults()?,
            context: setup.model.config.max_context.min(engine.kv_blocks() * BLOCK_TOKENS),
            engine,
            tokenizer,
            interrupt: Interrupt::listen()?,
            output: if json { Output::stderr() } else { Output::stdout() },
            conversation: Conversation::new(args.system.clone()),
            answers: Vec::new(),
        })
    }

    /// Takes what was typed.
    fn take(&mut self, text: String) -> Result<ControlFlow<()>, Error> {
        match Input::parse(text)? {
            Input::Message(text) if text.is_empty() => {}
            Input::Message(text) => return self.answer(self.conversation.turns(), text),
            Input::Retry => {
                let Some((turn, message)) = self.conversation.last_message() else {
                    return Err(Error::usage("there is no message to answer again: type one"));
                };
                let message = message.to_owned();
                return self.answer(turn, message);
            }
            Input::Help => HELP.lines().for_each(notice),
            Input::System(text) => self.conversation.set_system(text),
            Input::Clear => self.conversation.clear(),
            Input::Save { path, force } => self.save(path, force)?,
            Input::Stats => self.stats().iter().for_each(notice),
            Input::Exit => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Answers `message` as turn number `turn`, and keeps the answer, or the part that there was
    /// before Ctrl-C. Breaks if stdout is closed.
    fn answer(&mut self, turn: usize, message: String) -> Result<ControlFlow<()>, Error> {
        self.conversation.asked(turn, &message);
        let request = self.request(turn, &message)?;
        let text = self.detokenizer(&request)?;
        let mut stats = AnswerStats::begin(request.prompt.len());
        let mut status = StatusLine::new();
        let (mut answer, mut flow) = (String::new(), ControlFlow::Continue(()));
        self.interrupt.take();
        let handle = self.engine.submit(request)?;
        let ended = answer::follow(events(&handle, &self.interrupt), Some(text), |event, piece| {
            stats.take(event);
            answer.push_str(piece);
            if !self.output.write(piece)? {
                flow = ControlFlow::Break(());
            }
            status.take(event);
            Ok(flow)
        });
        drop(status);
        self.output.finish()?;
        stats.finish_reason = ended?;
        if flow.is_continue() {
            self.report(&stats);
        }
        self.answers.push(stats);
        if !answer.is_empty() {
            self.conversation.answered(turn, message, answer);
        }
        Ok(flow)
    }

    /// The request for an answer to `message` after the first `turns` turns.
    fn request(&self, turns: usize, message: &str) -> Result<Request, Error> {
        let mut messages = self.conversation.messages(turns);
        messages.push(ChatMessage::new("user", message));
        let options = ChatOptions {
            allow_special_tokens: self.args.allow_special_tokens,
            ..ChatOptions::default()
        };
        let prompt = self.setup.template.encode(&self.tokenizer, &messages, options)?;
        let (used, context) = (prompt.len(), self.context);
        if used >= context {
            return Err(Error::failed(format!(
                "the context is full: the conversation has {used} tokens of {context}; /clear \
                 begins a new one"
            )));
        }
        let room = (context - used) as u32;
        let sampling = &self.args.sampling;
        let max = sampling.max_tokens().map_or(room, |max| max.min(room));
        let mut request = sampling.request(&self.sampling, prompt, max);
        // With a given seed /retry shall give another answer.
        request.sampling.seed = request.sampling.seed.wrapping_add(self.answers.len() as u64);
        Ok(request)
    }

    fn detokenizer(&self, request: &Request) -> Result<Detokenizer, Error> {
        let (eos, tokenizer) = (&self.setup.model.config.eos_tokens, self.tokenizer.clone());
        let stops = self.args.sampling.stops()?;
        Ok(Detokenizer::new(tokenizer, stops, request, eos, TextOptions::default()))
    }

    /// Says why an answer is not whole.
    fn report(&self, stats: &AnswerStats) {
        let full = stats.context_tokens() >= self.context;
        match stats.finish_reason {
            FinishReason::Cancelled => notice("(stopped)"),
            FinishReason::Length if full => {
                notice("(cut: the context is full; /clear begins a new conversation)");
            }
            FinishReason::Length => notice("(cut at --max-tokens)"),
            _ => {}
        }
    }

    fn stats(&self) -> Vec<String> {
        match self.answers.last() {
            Some(last) => last.lines(self.context),
            None => vec!["(no answer yet)".into()],
        }
    }

    fn save(&self, path: PathBuf, force: bool) -> Result<(), Error> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.exists()) {
            return Err(Error::usage(format!(
                "there is no folder {}: make it first, or correct the path",
                folder.display()
            )));
        }
        let file = OutputFile::claim_private(path, force)?;
        file.write(&format!("{:#}\n", self.json()))?;
        notice(format_args!("(saved: {})", file.path().display()));
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            GENERATOR: generator("chat"),
            "model": self.setup.name,
            "messages": self.conversation.json(),
            "answers": self.answers.iter().map(AnswerStats::json).collect::<Vec<_>>(),
        })
    }
}

/// The events of `handle` until Ctrl-C.
fn events(handle: &RequestHandle, interrupt: &Interrupt) -> impl Iterator<Item = Event> {
    std::iter::from_fn(move || {
        loop {
            if interrupt.take() {
                return None;
            }
            if let Some(event) = handle.recv_timeout(POLL) {
                return Some(event);
            }
        }
    })
}
