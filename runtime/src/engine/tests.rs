//! The loop over a backend that works ahead, and over one that breaks: the CPU's, which keeps its answers back.

use std::collections::VecDeque;
use std::sync::Arc;

use trail_probe::Probe;

use super::assemble::Built;
use super::backend::{Backend, Fault, Step};
use super::sampling::Sampled;
use super::{Engine, EngineBuilder, Event, FinishReason, PolicyKind, Request, RequestHandle};
use crate::batch::{Batch, PENDING};
use crate::engine::SubmitError;
use crate::model::{Dtype, Model};

/// Answers a step after the next one was launched, as a device does, and knows tokens before its caller.
struct Ahead {
    inner: Box<dyn Backend>,
    /// By slot: what it sampled last.
    last: Vec<u32>,
    answers: VecDeque<Vec<Sampled>>,
    /// Breaks at this step.
    breaks: Option<u64>,
}

impl Backend for Ahead {
    fn ahead(&self) -> usize {
        1
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        assert!(self.answers.len() <= 1, "two steps under way at most");
        if self.breaks == Some(step.number) {
            return Err(Fault("the planned breakdown".into()));
        }
        let mut batch: Batch = step.batch.clone();
        for segment in &batch.segments {
            let token = &mut batch.tokens[segment.first_row as usize];
            if *token == PENDING {
                assert_eq!(segment.len, 1);
                *token = self.last[segment.slot as usize];
            }
        }
        self.inner.launch(&Step { batch: &batch, ..*step })?;
        let mut sampled = Vec::new();
        self.inner.collect(&mut sampled)?;
        let wanted = batch.segments.iter().filter(|segment| segment.logits);
        wanted.zip(&sampled).for_each(|(of, chosen)| self.last[of.slot as usize] = chosen.id);
        self.answers.push_back(sampled);
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        sampled.extend(self.answers.pop_front().expect("a step is under way"));
        Ok(())
    }
}

fn model() -> Arc<Model> {
    Arc::new(Model::random("tiny", Dtype::Bf16, 7).expect("a known shape"))
}

fn builder(model: &Arc<Model>, policy: PolicyKind) -> EngineBuilder {
    let probe = Probe::random(model.config.hidden_size, 0, 3);
    let builder = Engine::builder().model(model.clone()).probe(Some(probe)).policy(policy);
    // So few blocks that requests are evicted.
    builder.slots(4).threads(Some(1)).max_requests(64).kv_blocks(Some(14))
}

fn ahead(builder: EngineBuilder, breaks: Option<u64>) -> Engine {
    let engine = builder.assemble(|builder, model, forecast| {
        let built = builder.host(model, forecast)?;
        let (last, answers) = (vec![PENDING; 64], VecDeque::new());
        let backend = Box::new(Ahead { inner: built.backend, last, answers, breaks });
        Ok(Built { backend, ..built })
    });
    engine.expect("an engine")
}

/// Requests of mixed sizes; some end by a stop token, which is known a step too late.
fn requests() -> impl Iterator<Item = Request> {
    (0..24u32).map(|i| {
        let prompt = (0..3 + (i * 13) % 40).map(|at| (at * 7 + i) % 50).collect();
        let mut request = Request::new(prompt, 5 + (i * 17) % 60);
        request.sampling.seed = u64::from(i);
        request.ignore_eos = true;
        request.true_length = Some(request.max_tokens);
        request.stop_tokens = if i % 3 == 0 { (0..40).collect() } else { Vec::new() };
        request
    })
}

fn answer(handle: RequestHandle) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    for event in handle {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { reason } => return (tokens, reason),
            _ => {}
        }
    }
    panic!("no Finished event");
}

fn answers(engine: &Engine) -> Vec<(Vec<u32>, FinishReason)> {
    let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
    handles.into_iter().map(answer).collect()
}

#[test]
fn answers_are_the_same_with_a_step_under_way() {
    let model = model();
    for policy in [PolicyKind::Fcfs, PolicyKind::Trail { c: 0.8 }, PolicyKind::Oracle] {
        let expected = answers(&builder(&model, policy).build().unwrap());
        let stopped = expected.iter().filter(|(_, reason)| *reason == FinishReason::Stop).count();
        assert!(stopped > 3, "{stopped} answers end by a stop token");
        let engine = ahead(builder(&model, policy), None);
        assert_eq!(answers(&engine), expected, "{policy}");
        let stats = engine.stats();
        assert_eq!((stats.finished, stats.blocks_used, engine.live()), (24, 0, 0));
        // All are there at once, and the oracle begins with the shortest: it never has to take a block back.
        assert_eq!(stats.evictions > 0, policy != PolicyKind::Oracle, "{policy}: evictions");
        let tokens: usize = expected.iter().map(|(tokens, _)| tokens.len()).sum();
        assert_eq!(stats.generated_tokens, tokens as u64, "a token too many was counted");
        assert!(stats.predictions_fresh > 0);
    }
}

#[test]
fn the_cancelled_leave_while_a_step_is_under_way() {
    let model = model();
    let expected = answers(&builder(&model, PolicyKind::Fcfs).build().unwrap());
    let engine = ahead(builder(&model, PolicyKind::Fcfs), None);
    let handles: Vec<_> = requests().map(|r| engine.submit(r).expect("fits")).collect();
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for (i, handle) in handles.into_iter().enumerate() {
        if i % 2 == 0 { kept.push((i, handle)) } else { dropped.push(handle) }
    }
    dropped.iter().for_each(RequestHandle::cancel);
    for (i, handle) in kept {
        assert_eq!(answer(handle), expected[i], "request {i}");
    }
    for handle in dropped {
        answer(handle);
    }
    assert_eq!((engine.live(), engine.stats().blocks_used), (0, 0));
}

#[test]
fn a_breakdown_fails_every_request_and_sends_no_wrong_token() {
    let model = model();
    let expected = answers(&builder(&model, PolicyKind::Fcfs).build().unwrap());
    for step in [1, 2, 5, 30] {
        let engine = ahead(builder(&model, PolicyKind::Fcfs), Some(step));
        let mut failed = 0;
        let handles: Vec<_> = requests().map(|request| engine.submit(request)).collect();
        for (handle, (tokens, _)) in handles.into_iter().zip(&expected) {
            match handle {
                Ok(handle) => {
                    let (got, reason) = answer(handle);
                    assert!(tokens.starts_with(&got), "step {step}: {got:?} of {tokens:?}");
                    failed += usize::from(reason == FinishReason::Failed);
                }
                Err(error) => assert!(matches!(error, SubmitError::Failed(_)), "{error}"),
            }
        }
        assert!(failed > 0, "step {step}");
        let error = engine.submit(Request::new(vec![1], 1)).err().expect("it is broken");
        assert_eq!(error.to_string(), "the engine broke down: the planned breakdown");
        assert_eq!(engine.live(), 0);
    }
}
