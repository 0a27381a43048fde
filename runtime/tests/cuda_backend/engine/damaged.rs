//! Damaged weights are a fault of the requests that use them.

use std::sync::Arc;

use trail_runtime::engine::{
    CudaSettings, Engine, EngineConfig, FinishReason, PolicyKind, Request,
};

use super::subject::{CUDA, Subject, answer};
use trail_test_support::damaged::with_nan_embedding;

/// A token of no prompt and of no answer.
fn unused_token(subject: &Subject) -> u32 {
    let vocab = subject.model.config.vocab_size as u32;
    let prompts: Vec<u32> = subject.requests().flat_map(|request| request.prompt).collect();
    let answers = || subject.expected.iter().flatten().map(|&(token, _)| token);
    let unused = (0..vocab).find(|id| !prompts.contains(id) && answers().all(|token| token != *id));
    unused.expect("a token that nothing uses")
}

/// Requests with a NaN in their prompt end with an error and no token; those beside them, and those
/// that get their KV blocks and batch slots afterwards, have the sound model's answers.
#[test]
fn cuda_logits_that_are_not_finite_end_their_request_alone() {
    let _session = trail_cuda_emulator::session();
    let subject = Subject::small();
    let bad = unused_token(&subject);
    let model = Arc::new(with_nan_embedding((*subject.model).clone(), bad));
    for (graphs, megakernel) in [(true, false), (false, true)] {
        let config = EngineConfig {
            cuda: CudaSettings { graphs, megakernel, ..CudaSettings::default() },
            kv_blocks: Some(16),
            ..subject.config(CUDA, PolicyKind::trail(0.8))
        };
        let engine = Engine::new(model.clone(), config).expect("an engine");
        for round in 0..2 {
            let what = format!("graphs {graphs}, round {round}");
            let handles: Vec<_> = subject
                .requests()
                .take(4)
                .map(|request| {
                    let mut faulty = request.clone();
                    let at = faulty.prompt.len() / 2;
                    faulty.prompt[at] = bad;
                    // They would share the rows before it, which the device computes beside it.
                    faulty.cache_salt = b"faulty".to_vec();
                    let faulty = engine.submit(faulty).expect("fits");
                    (engine.submit(request).expect("fits"), faulty)
                })
                .collect();
            for (index, (handle, faulty)) in handles.into_iter().enumerate() {
                let (tokens, reason) = answer(handle);
                assert_eq!(reason, FinishReason::Length, "{what}: request {index}");
                assert_eq!(tokens.len(), subject.expected[index].len(), "{what}: request {index}");
                subject.agree(index, &tokens, &what);
                let faulty = answer(faulty);
                assert_eq!(faulty, (vec![], FinishReason::Error), "{what}: request {index}");
            }
            assert_eq!((engine.live(), engine.stats().blocks_used), (0, 0), "{what}");
            // Alone, and after it one that begins with the same blocks.
            let request = subject.requests().max_by_key(|request| request.prompt.len());
            let request = request.expect("requests");
            let mut faulty = request.clone();
            *faulty.prompt.last_mut().expect("a prompt") = bad;
            faulty.cache_salt = vec![round as u8];
            let sound = Request { cache_salt: faulty.cache_salt.clone(), ..request };
            let index = subject.requests().position(|of| of.prompt == sound.prompt);
            let faulty = answer(engine.submit(faulty).expect("fits"));
            assert_eq!(faulty.1, FinishReason::Error, "{what}");
            let (tokens, reason) = answer(engine.submit(sound).expect("fits"));
            assert_eq!(reason, FinishReason::Length, "{what}");
            subject.agree(index.expect("asked"), &tokens, &what);
        }
    }
}
