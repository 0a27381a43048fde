//! Log-probabilities of prompts against those of transformers.

use std::path::Path;
use std::sync::Arc;

use trail_runtime::cpu::Compute;
use trail_runtime::engine::{
    CpuSettings, Engine, EngineConfig, Event, FinishReason, PolicyKind, Request, SamplingParams,
};
use trail_runtime::model::Model;
use trail_test_support::golden::{Golden, MAX_LOGPROB_ERROR};

use super::requests::LIMIT;

/// Prompt and greedy answer of each golden run as one prompt, in chunks of 7 tokens: its last
/// tokens have the log-probabilities that transformers computed.
#[test]
fn prompts_are_scored_as_by_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let all = Golden::all(&folder);
    assert!(all.len() > 10, "{} golden runs", all.len());
    for golden in all {
        let model = Arc::new(Model::load(&golden.folder).expect("a model"));
        let cpu =
            CpuSettings { threads: Some(2), compute: Compute::Exact, ..CpuSettings::default() };
        let config = EngineConfig {
            policy: PolicyKind::Fcfs,
            max_running: Some(2),
            token_budget: Some(7),
            cpu,
            ..EngineConfig::default()
        };
        let engine = Engine::new(model, config).expect("builds");
        let prompt = [&golden.prompt[..], &golden.greedy].concat();
        let sampling = SamplingParams { prompt_logprobs: Some(1), ..SamplingParams::default() };
        let request = Request { sampling, ..Request::new(prompt.clone(), 0) };
        let handle = engine.submit(request).expect("fits");
        let mut scored = Vec::new();
        while let Some(event) = handle.recv_timeout(LIMIT) {
            match event {
                Event::PromptToken { id, logprob, rank } => scored.push((id, logprob, rank)),
                Event::Finished { reason } => assert_eq!(reason, FinishReason::Length),
                _ => {}
            }
        }
        assert_eq!(scored.iter().map(|of| of.0).collect::<Vec<_>>(), prompt[1..]);
        let answer = &scored[golden.prompt.len() - 1..];
        for (&(_, logprob, rank), (&wanted, &gap)) in
            answer.iter().zip(golden.logprobs.iter().zip(&golden.gaps))
        {
            let error = (f64::from(logprob) - wanted).abs();
            assert!(error <= MAX_LOGPROB_ERROR, "{}: off by {error:.2e}", golden.name());
            assert!(rank == 1 || gap < MAX_LOGPROB_ERROR * 2.0, "{}: greedy", golden.name());
        }
    }
}
