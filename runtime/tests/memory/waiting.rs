//! Memory of waiting requests: what was asked for does not count, what is held does.

use std::sync::Arc;

use trail_counting_allocator::live_bytes;
use trail_runtime::backend::{Backend, Fault, MAX_TOP_LOGPROBS, Sampled, SampledToken, Step};
use trail_runtime::engine::{
    BuiltBackend, EngineConfig, Event, FinishReason, QueueConfig, Request, RequestHandle,
    SamplingParams, StepOutcome, SteppedEngine,
};
use trail_runtime::model::{Dtype, Model};

const CONTEXT: usize = 128 << 10;
const REQUESTS: usize = 4096;
const PROMPT: usize = 1000;
const MAX_RUNNING: usize = 8;

/// Samples token 1 everywhere and computes nothing: a device with room for any context.
struct Constant {
    samples: usize,
    top: u8,
}

impl Backend for Constant {
    fn ahead(&self) -> usize {
        0
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        self.samples = step.batch.segments.iter().filter(|segment| segment.logits).count();
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        let (id, logprob, top) = (1, -1.0, [(1, -1.0); MAX_TOP_LOGPROBS]);
        let token = SampledToken { id, logprob, top, num_top: self.top };
        sampled.extend(std::iter::repeat_n(Ok(token), self.samples));
        Ok(())
    }
}

/// An engine on a model with a context of [`CONTEXT`] tokens.
fn engine(top: u8) -> SteppedEngine {
    let mut model = Model::random("tiny", Dtype::Bf16, 7).expect("a known shape");
    model.config.max_context = CONTEXT;
    let config = EngineConfig {
        max_running: Some(MAX_RUNNING),
        queue: QueueConfig { max_requests: REQUESTS, ..QueueConfig::default() },
        ..EngineConfig::default()
    };
    let built = SteppedEngine::with_backend(Arc::new(model), config, |_, _, _| {
        Ok(BuiltBackend {
            backend: Box::new(Constant { samples: 0, top }),
            kv_blocks: MAX_RUNNING * CONTEXT / 16,
            device: "a test device".into(),
        })
    });
    built.expect("builds")
}

/// A chat without `max_tokens`: all the context is left to the answer.
fn chat(top_logprobs: u8) -> Request {
    let max_tokens = (CONTEXT - PROMPT) as u32;
    let sampling = SamplingParams { top_logprobs, ..SamplingParams::default() };
    Request { ignore_eos: true, sampling, ..Request::new(vec![1; PROMPT], max_tokens) }
}

#[test]
fn waiting_chats_hold_what_they_sent() {
    let _alone = super::alone();
    for top in [0, MAX_TOP_LOGPROBS as u8] {
        let mut engine = engine(top);
        let before = live_bytes();
        let submit = |_| engine.submit(chat(top)).expect("fits");
        let handles: Vec<RequestHandle> = (0..REQUESTS).map(submit).collect();
        // Some run, the others are admitted and wait.
        for _ in 0..20 {
            assert_eq!(engine.step(), Ok(StepOutcome::Ran));
        }
        let (total, each) = (live_bytes(), (live_bytes() - before) / REQUESTS as u64);
        assert!(total < 1 << 30, "{total} bytes with the engine's own");
        // The prompt is 4,000 bytes; 8 run.
        assert!(each < 6_000, "{each} bytes a request");
        drop((engine, handles));
    }
}

#[test]
fn a_backend_without_scores_refuses_prompts_that_ask_for_them() {
    // Its allocations are not to be counted by another test.
    let _alone = super::alone();
    let engine = engine(0);
    let mut request = chat(0);
    request.sampling.prompt_logprobs = Some(0);
    let error = engine.submit(request).err().expect("refused");
    assert!(error.is_invalid() && error.to_string().contains("on the CPU alone"), "{error}");
}

#[test]
fn an_unread_answer_of_the_whole_context_is_bounded_by_its_tokens() {
    let _alone = super::alone();
    let mut engine = engine(0);
    let before = live_bytes();
    let handle = engine.submit(chat(0)).expect("fits");
    let steps = (0..2 * CONTEXT).take_while(|_| engine.step() != Ok(StepOutcome::Idle)).count();
    assert!(steps < 2 * CONTEXT, "the engine goes on");
    // 8 bytes an event and a chunk; the buffers of the engine's end are gone.
    let unread = live_bytes() - before;
    let tokens = CONTEXT - PROMPT;
    assert!((8 * tokens as u64..10 * tokens as u64).contains(&unread), "{unread} bytes");
    let mut events = std::iter::from_fn(|| handle.try_recv());
    assert_eq!(events.by_ref().take(tokens).count(), tokens);
    assert_eq!(events.next(), Some(Event::Finished { reason: FinishReason::Length }));
    assert!(live_bytes() < before + 100_000, "what was read is freed");
}
