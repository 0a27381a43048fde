//! From the common options to a model and an engine that serves it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use trail_probe::{Predictor, Probe};
use trail_runtime::cpu::Isa;
use trail_runtime::engine::{
    DEFAULT_C, DEFAULT_MAX_REQUESTS, DEFAULT_SLOTS, DEFAULT_TOKEN_BUDGET, Engine, PolicyKind,
};
use trail_runtime::model::{Model, files};
use trail_runtime::text::{ChatMessage, ChatTemplate, Tokenizer};

use crate::error::Error;
use crate::locate;
use crate::notice::notice;

/// Which model, and what predicts for it.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A safetensors file with config.json and tokenizer.json beside it, or a folder of them
    /// [default: the bundled demo model]
    #[arg(long, global = true, value_name = "PATH")]
    model: Option<PathBuf>,
    /// The remaining-length probe [default: probe.safetensors beside the model, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    probe: Option<PathBuf>,
}

/// What computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The best that this machine has and this build can use.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
}

/// How the engine is put together.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Which requests run first: fcfs, sjf, trail or oracle
    /// [default: trail where there is a probe, else fcfs]
    #[arg(long, global = true, value_name = "NAME")]
    policy: Option<PolicyKind>,
    /// trail: a request can be preempted during this share of its first predicted length, 0 to 1
    #[arg(long, global = true, value_name = "SHARE", default_value_t = DEFAULT_C, value_parser = share)]
    c: f32,
    /// Sequences in one forward pass
    #[arg(long, global = true, value_name = "N", default_value_t = DEFAULT_SLOTS)]
    slots: usize,
    /// KV blocks of 16 tokens [default: what the slots can need and half as much again, within 4 GiB]
    #[arg(long, global = true, value_name = "N")]
    kv_blocks: Option<usize>,
    /// Threads of the forward pass [default: all cores]
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Tokens in one forward pass, of prompts and of answers
    #[arg(long, global = true, value_name = "N", default_value_t = DEFAULT_TOKEN_BUDGET)]
    token_budget: usize,
    /// Requests in the engine at once, running and waiting; more are refused
    #[arg(long, global = true, value_name = "N", default_value_t = DEFAULT_MAX_REQUESTS)]
    max_requests: usize,
    /// What computes
    #[arg(long, global = true, value_enum, default_value_t = Device::Auto)]
    device: Device,
    /// Instruction set of the CPU kernels: auto, portable, avx2 or avx512
    #[arg(long, global = true, value_name = "NAME", default_value_t = Isa::Auto)]
    isa: Isa,
}

fn share(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(c) if (0.0..=1.0).contains(&c) => Ok(c),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

/// Most threads that can be asked for: far above any machine, far below what a system refuses.
const MAX_THREADS: usize = 1024;

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_THREADS).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX_THREADS}")),
    }
}

impl EngineArgs {
    /// Threads of the forward pass.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores)
    }

    /// The policy that was named; TRAIL if none was.
    pub fn policy_or_trail(&self) -> PolicyKind {
        self.with_c(self.policy.unwrap_or(PolicyKind::Trail { c: DEFAULT_C }))
    }

    /// Instruction set of the CPU kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `policy` with the `--c` that was asked for.
    pub fn with_c(&self, policy: PolicyKind) -> PolicyKind {
        match policy {
            PolicyKind::Trail { .. } => PolicyKind::Trail { c: self.c },
            other => other,
        }
    }
}

/// A model with all that belongs to it.
pub struct Setup {
    /// The model.
    pub model: Arc<Model>,
    /// What the model is called: its folder's or file's name.
    pub name: String,
    /// The folder the model lies in.
    pub folder: PathBuf,
    /// Renders conversations.
    pub template: ChatTemplate,
    /// `None` where the model has no tokenizer: token ids can still be served.
    tokenizer: Option<Arc<Tokenizer>>,
    probe: Option<PathBuf>,
    predictor: Option<PathBuf>,
}

impl Setup {
    /// Loads the model.
    pub fn load(args: &ModelArgs) -> Result<Setup, Error> {
        let path = args.model.clone().map_or_else(locate::demo_model, Ok)?;
        let model = Arc::new(Model::load(&path)?);
        let folder = files::model_folder(&path);
        let present = |name| Some(folder.join(name)).filter(|file: &PathBuf| file.is_file());
        let tokenizer = present("tokenizer.json")
            .map(|_| Tokenizer::load(&folder, model.config.vocab_size).map(Arc::new))
            .transpose()?;
        Ok(Setup {
            name: name_of(&path),
            template: ChatTemplate::load(&folder)?,
            probe: args.probe.clone().or_else(|| present("probe.safetensors")),
            predictor: present("predictor.safetensors"),
            tokenizer,
            model,
            folder,
        })
    }

    /// The tokenizer, or why there is none.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, Error> {
        match &self.tokenizer {
            Some(tokenizer) => Ok(tokenizer.clone()),
            // Only its absence was tolerated so far: now it is an error, and this one says it.
            None => Ok(Tokenizer::load(&self.folder, self.model.config.vocab_size).map(Arc::new)?),
        }
    }

    /// The tokens of one user turn, by the chat template where there is one.
    pub fn user_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        if !self.template.is_present() {
            return self.raw_prompt(text);
        }
        let turn = ChatMessage { role: "user".into(), content: text.into() };
        Ok(self.template.encode(&*self.tokenizer()?, &[turn], true)?)
    }

    /// The tokens of `text` as it is.
    pub fn raw_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode(text, true)?)
    }

    /// An engine as the options say; a policy that was not named follows from what there is.
    pub fn engine(&self, args: &EngineArgs) -> Result<Engine, Error> {
        let policy = args.policy.unwrap_or_else(|| self.default_policy());
        self.engine_with(args, policy, args.max_requests)
    }

    /// An engine with another policy, and with room for `max_requests` at least.
    pub fn engine_with(
        &self,
        args: &EngineArgs,
        policy: PolicyKind,
        max_requests: usize,
    ) -> Result<Engine, Error> {
        // This build has one backend, which both spellings name.
        let (Device::Auto | Device::Cpu) = args.device;
        let engine = Engine::builder()
            .model(self.model.clone())
            .probe(self.probe()?)
            .predictor(self.predictor.as_ref().map(Predictor::open).transpose()?)
            .policy(args.with_c(policy))
            .slots(args.slots)
            .max_requests(max_requests.max(args.slots))
            .token_budget(args.token_budget)
            .kv_blocks(args.kv_blocks)
            .threads(args.threads)
            .isa(args.isa)
            .build()?;
        Ok(engine)
    }

    /// The probe, where there is one.
    pub fn probe(&self) -> Result<Option<Probe>, Error> {
        Ok(self.probe.as_ref().map(Probe::open).transpose()?)
    }

    fn default_policy(&self) -> PolicyKind {
        if self.probe.is_some() {
            return PolicyKind::Trail { c: DEFAULT_C };
        }
        notice(
            "warning: no probe beside the model: first come, first served (give one with --probe FILE)",
        );
        PolicyKind::Fcfs
    }
}

/// What the model at `path` is called. `model.safetensors` is every model's name, so its folder's counts.
fn name_of(path: &Path) -> String {
    let resolved = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let named = match resolved.file_name().and_then(|name| name.to_str()) {
        Some(file) if file.starts_with("model.safetensors") => resolved.parent(),
        _ => Some(resolved.as_path()),
    };
    let name = match named {
        Some(file) if file.is_file() => file.file_stem(),
        folder => folder.and_then(Path::file_name),
    };
    name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
