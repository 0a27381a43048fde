//! The requests, their model, and the CPU backend's answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use trail_probe::Probe;
use trail_runtime::engine::{
    BuildError, ComputeDevice, CpuSettings, CudaSettings, Engine, EngineConfig, Event,
    FinishReason, PolicyKind, QueueConfig, Request, RequestHandle, SamplingParams, SubmitError,
};
use trail_runtime::model::{Dtype, Model, ModelConfig};
use trail_runtime::reference::Reference;
use trail_runtime::text::{ChatMessage, ChatOptions, ChatTemplate, Tokenizer};

use trail_test_support::tolerance::Tolerance;

/// The first CUDA device: the emulator, or a real one.
pub(crate) const CUDA: ComputeDevice = ComputeDevice::Cuda { ordinal: 0 };

/// A model, prompts, and the CPU backend's answers.
pub(crate) struct Subject {
    pub(crate) model: Arc<Model>,
    probe: Box<dyn Fn() -> Probe>,
    /// Prompt and most tokens of each request.
    asked: Vec<(Vec<u32>, u32)>,
    /// The CPU backend's answers: tokens, and by how much each was preferred to the next best.
    pub(crate) expected: Vec<Vec<(u32, f32)>>,
    /// How much closer than this a device cannot tell two tokens apart.
    tie: f32,
}

impl Subject {
    /// A random model that takes the emulator little time.
    pub(crate) fn small() -> Subject {
        let config = ModelConfig {
            hidden_size: 64,
            intermediate_size: 96,
            num_layers: 2,
            num_heads: 2,
            num_kv_heads: 1,
            head_dim: 64,
            vocab_size: 250,
            windows: vec![None; 2],
            max_context: 256,
            eos_tokens: vec![],
            ..ModelConfig::named("demo").expect("a known shape")
        };
        let model = Model::random_of(config, Dtype::Bf16, 11).expect("a small model");
        let hidden = model.config.hidden_size;
        let probe = move || Probe::random(hidden, 0, 3);
        let asked = (0..9u32)
            .map(|i| {
                let prompt = (0..3 + (i * 13) % 40).map(|at| (at * 7 + i * 3) % 250).collect();
                (prompt, 5 + (i * 17) % 23)
            })
            .collect();
        Subject::new(Arc::new(model), Box::new(probe), asked)
    }

    /// `count` turns of four conversations of two beginnings, each with all before it.
    pub(crate) fn turns(count: u32) -> Vec<Subject> {
        let small = Subject::small();
        let history = |of: u32| (0..35).map(|at| (at * 7 + of % 2) % 250).collect();
        let mut histories: Vec<Vec<u32>> = (0..4).map(history).collect();
        let turn = |turn| {
            let ask = |(of, history): (u32, &mut Vec<u32>)| {
                history.extend((0..3 + of * 5).map(|at| (at % 5 * 3 + turn + of * 11) % 250));
                (history.clone(), 4 + (of * 5 + turn * 7) % 19)
            };
            let asked = (0..).zip(&mut histories).map(ask).collect();
            let hidden = small.model.config.hidden_size;
            let probe = move || Probe::random(hidden, 0, 3);
            let subject = Subject::new(small.model.clone(), Box::new(probe), asked);
            for (history, answer) in histories.iter_mut().zip(&subject.expected) {
                history.extend(answer.iter().map(|(token, _)| token));
            }
            subject
        };
        (0..count).map(turn).collect()
    }

    /// The bundled model with its own probe.
    pub(crate) fn demo(requests: u32, tokens: u32) -> Subject {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
        let model = Arc::new(Model::load(&folder).expect("the bundled model"));
        let file = folder.join("probe.safetensors");
        let probe = move || Probe::open(&file).expect("its probe");
        // Prompts that it was trained for: of other prompts it is as unsure as a device's rounding
        // is large.
        let prompts = std::fs::read_to_string(folder.join("prompts.jsonl")).expect("its prompts");
        let template = ChatTemplate::load(&folder).expect("its template");
        let vocab = model.config.vocab_size;
        let tokenizer = Tokenizer::load(&folder, vocab).expect("its tokenizer");
        let turn = |line: &str| {
            let prompt: Value = serde_json::from_str(line).expect("JSON");
            let content = prompt["prompt"].as_str().expect("a prompt").to_owned();
            let turn = ChatMessage::new("user", content);
            template.encode(&tokenizer, &[turn], ChatOptions::default()).expect("tokens")
        };
        let asked = prompts.lines().take(requests as usize).map(turn);
        let asked = asked.zip(tokens..).collect();
        Subject::new(model, Box::new(probe), asked)
    }

    fn new(
        model: Arc<Model>,
        probe: Box<dyn Fn() -> Probe>,
        asked: Vec<(Vec<u32>, u32)>,
    ) -> Subject {
        let reference = Reference::new(&model);
        let sample: Vec<&[u32]> = asked.iter().take(2).map(|(prompt, _)| &prompt[..]).collect();
        let traces: Vec<_> = sample.iter().map(|tokens| reference.trace(tokens)).collect();
        let tie = 2.0 * Tolerance::new(&model, &sample, &traces).logit as f32;
        let mut subject = Subject { model, probe, asked, expected: Vec::new(), tie };
        let engine = subject.engine(subject.config(ComputeDevice::Cpu, PolicyKind::Fcfs));
        subject.expected = subject.submit(&engine).into_iter().map(preferred).collect();
        subject
    }

    /// Settings of an engine for few sequences at a time.
    pub(crate) fn config(&self, device: ComputeDevice, policy: PolicyKind) -> EngineConfig {
        EngineConfig {
            probe: Some((self.probe)()),
            policy,
            device,
            cpu: CpuSettings { threads: Some(1), ..CpuSettings::default() },
            cuda: CudaSettings { host_kv_bytes: 1 << 20, ..CudaSettings::default() },
            max_running: Some(4),
            token_budget: Some(48),
            kv_blocks: Some(80),
            queue: QueueConfig { max_requests: 32, ..QueueConfig::default() },
            ..EngineConfig::default()
        }
    }

    /// Width of an activation.
    pub(crate) fn hidden(&self) -> usize {
        self.model.config.hidden_size
    }

    /// An engine of the model.
    pub(crate) fn engine(&self, config: EngineConfig) -> Engine {
        Engine::new(self.model.clone(), config).expect("an engine")
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> {
        self.asked.iter().map(|(prompt, max_tokens)| Request {
            sampling: SamplingParams {
                temperature: 0.0,
                top_logprobs: 2,
                ..SamplingParams::default()
            },
            ignore_eos: true,
            true_length: Some(*max_tokens),
            ..Request::new(prompt.clone(), *max_tokens)
        })
    }

    fn submit(&self, engine: &Engine) -> Vec<RequestHandle> {
        self.requests().map(|request| engine.submit(request).expect("fits")).collect()
    }

    /// Asks everything at once; every answer must be whole, and the CPU's as far as that can be
    /// told.
    pub(crate) fn check(&self, engine: &Engine, what: &str) {
        let handles = self.submit(engine);
        let mut distinct = 0;
        for (index, handle) in handles.into_iter().enumerate() {
            let (tokens, reason) = answer(handle);
            assert_eq!(reason, FinishReason::Length, "{what}: request {index}");
            assert_eq!(tokens.len(), self.expected[index].len(), "{what}: request {index}");
            distinct += self.agree(index, &tokens, what);
        }
        let all: usize = self.expected.iter().map(Vec::len).sum();
        println!("{what}: {distinct} of {all} tokens distinguishable");
        assert!(
            3 * distinct > all,
            "{what}: only {distinct} of {all} tokens could be distinguished"
        );
        assert_eq!(engine.live(), 0, "{what}");
    }

    /// Number of `tokens` that are request `index`'s before the first that a device may choose
    /// otherwise; panics where one before it is another.
    pub(crate) fn agree(&self, index: usize, tokens: &[u32], what: &str) -> usize {
        for (at, (&token, &(expected, gap))) in tokens.iter().zip(&self.expected[index]).enumerate()
        {
            if gap < self.tie {
                return at;
            }
            assert_eq!(token, expected, "{what}: request {index}, token {at}, preferred by {gap}");
        }
        tokens.len()
    }

    /// As [`Subject::check`] where things may break: answers are whole or a beginning, and the
    /// second figure counts those that failed.
    pub(crate) fn survive(&self, engine: &Engine, what: &str) -> (usize, usize) {
        let handles: Vec<_> = self.requests().map(|request| engine.submit(request)).collect();
        let (mut whole, mut failed) = (0, 0);
        for (index, handle) in handles.into_iter().enumerate() {
            let handle = match handle {
                Ok(handle) => handle,
                Err(SubmitError::Failed(fault)) => {
                    assert!(!fault.0.is_empty() && !fault.0.contains('\n'), "{what}: {fault}");
                    failed += 1;
                    continue;
                }
                Err(other) => panic!("{what}: {other}"),
            };
            let (tokens, reason) = answer(handle);
            self.agree(index, &tokens, what);
            match reason {
                FinishReason::Length => whole += 1,
                FinishReason::Failed => failed += 1,
                other => panic!("{what}: request {index} ended by {}", other.name()),
            }
            let full = tokens.len() == self.expected[index].len();
            assert_eq!(full, reason == FinishReason::Length, "{what}: request {index}");
        }
        assert_eq!(engine.fault().is_some(), failed > 0, "{what}");
        (whole, failed)
    }
}

/// Longest wait for an event, or for an engine to empty: what comes later hangs. The emulator
/// interprets every kernel.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// The tokens of an answer, and why it ended.
pub(crate) fn answer(handle: RequestHandle) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { reason } => return (tokens, reason),
            _ => {}
        }
    }
    panic!("no event for {LIMIT:?}, and no Finished");
}

/// The tokens of an answer, and by how much each was preferred.
fn preferred(handle: RequestHandle) -> Vec<(u32, f32)> {
    let (mut tokens, mut best) = (Vec::new(), Vec::new());
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Alternative { logprob, .. } => best.push(logprob),
            Event::Token { id, .. } => {
                tokens.push((id, best[0] - best[1]));
                best.clear();
            }
            _ => {}
        }
    }
    tokens
}

/// The engine, or in one line why there is none.
pub(crate) fn build(model: &Arc<Model>, config: EngineConfig) -> Result<Engine, String> {
    Engine::new(model.clone(), config).map_err(|error| match error {
        BuildError::Failed(why) => {
            assert!(!why.is_empty() && !why.contains('\n'), "{why}");
            why
        }
        other => panic!("{other}"),
    })
}
