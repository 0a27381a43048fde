//! The engine end to end on small random models: answers, limits, cancellation, preemption, and
//! batch invariance: an answer does not depend on the other requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trail_probe::{Inputs, Probe};
use trail_runtime::engine::{
    CpuSettings, Engine, EngineConfig, Event, FinishReason, PolicyKind, QueueConfig, Request,
    RequestHandle, SamplingParams, SubmitError,
};
use trail_runtime::model::{Dtype, Model};

fn model() -> Arc<Model> {
    Arc::new(Model::random("tiny", Dtype::Bf16, 7).expect("a known shape"))
}

fn config(model: &Model) -> EngineConfig {
    EngineConfig {
        probe: Some(
            Probe::random(model.config.hidden_size, 0, 3).with_random_inputs(Inputs::ALL[3], 4),
        ),
        cpu: threads(2),
        max_running: Some(4),
        ..EngineConfig::default()
    }
}

fn threads(threads: usize) -> CpuSettings {
    CpuSettings { threads: Some(threads), ..CpuSettings::default() }
}

fn queue_of(max_requests: usize) -> QueueConfig {
    QueueConfig { max_requests, ..QueueConfig::default() }
}

fn engine(model: &Arc<Model>, config: EngineConfig) -> Engine {
    Engine::new(model.clone(), config).expect("builds")
}

fn request(seed: u64, prompt_len: u32, max_tokens: u32) -> Request {
    Request {
        sampling: SamplingParams { seed, ..SamplingParams::default() },
        ignore_eos: true,
        true_length: Some(max_tokens),
        ..Request::new((0..prompt_len).map(|i| (i * 7 + seed as u32) % 50).collect(), max_tokens)
    }
}

/// Longest wait for an event, or for an engine to empty: what comes later hangs.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// `(generated, remaining)`, in order.
type Predictions = Vec<(u32, f32)>;

/// Receives one answer: tokens, predictions and finish reason.
fn answer(handle: RequestHandle) -> (Vec<u32>, Predictions, FinishReason) {
    let (mut tokens, mut predictions) = (Vec::new(), Vec::new());
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Token { id, logprob } => {
                assert!(logprob <= 0.0);
                tokens.push(id);
            }
            Event::Prediction { generated, remaining } => predictions.push((generated, remaining)),
            Event::Finished { reason } => return (tokens, predictions, reason),
            Event::PromptToken { .. } | Event::Alternative { .. } | Event::Preempted { .. } => {}
        }
    }
    panic!("no event for {LIMIT:?}, and no Finished");
}

/// Runs 24 requests of mixed sizes at once.
fn run(engine: &Engine) -> Vec<(Vec<u32>, Predictions)> {
    let handles: Vec<_> = (0..24)
        .map(|i| engine.submit(request(i, 3 + (i as u32 * 13) % 40, 5 + (i as u32 * 17) % 60)))
        .map(|handle| handle.expect("fits"))
        .collect();
    let answers = handles.into_iter().map(answer);
    answers.map(|(tokens, predictions, _)| (tokens, predictions)).collect()
}

#[test]
fn answers_and_predictions_are_the_same_under_every_policy_and_pressure() {
    let model = model();
    let policies = PolicyKind::HELP.iter().map(|(name, _)| name.parse::<PolicyKind>().unwrap());
    let alone = EngineConfig { cpu: threads(1), max_running: Some(1), ..config(&model) };
    let expected = run(&engine(&model, alone));
    assert!(expected.iter().all(|(tokens, predictions)| tokens.len() == predictions.len()));
    for policy in policies {
        for kv_blocks in [7, 400] {
            for token_budget in [8, 64] {
                let config = EngineConfig {
                    policy,
                    // There is no prompt predictor: some policies rank by a default length.
                    replays: true,
                    kv_blocks: Some(kv_blocks),
                    token_budget: Some(token_budget),
                    ..config(&model)
                };
                let engine = engine(&model, config);
                let got = run(&engine);
                for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    assert_eq!(got.0, expected.0, "{policy} {kv_blocks} blocks: tokens of {index}");
                    assert_eq!(got.1, expected.1, "{policy} {kv_blocks} blocks: rows of {index}");
                }
                let stats = engine.stats();
                assert_eq!((stats.finished, stats.predictions_late), (24, 0));
                assert_eq!(stats.blocks_used, 0, "all blocks came back");
                if policy == PolicyKind::Fcfs && kv_blocks == 7 {
                    assert!(stats.evictions > 0, "7 blocks are too few for 4 sequences");
                }
            }
        }
    }
}

#[test]
fn a_forced_length_ends_an_answer_and_no_policy_sees_it() {
    // Predicted length 100, forced length 7 of at most 200: the reported prediction is not cut
    // to 7.
    let model = model();
    let engine = engine(&model, EngineConfig { probe: None, replays: true, ..config(&model) });
    let predictions: Option<Arc<[f32]>> = Some(vec![100.0; 200].into());
    let forced = Request { forced_length: Some(7), predictions, ..request(1, 5, 200) };
    let (tokens, predictions, reason) = answer(engine.submit(forced.clone()).expect("fits"));
    assert_eq!((tokens.len(), reason), (7, FinishReason::Length));
    assert_eq!(predictions, (0..7).map(|generated| (generated, 100.0)).collect::<Vec<_>>());
    // Stop tokens of the request and of the model do not end it sooner.
    let stopping = Request { stop_tokens: tokens, ignore_eos: false, ..forced.clone() };
    assert_eq!(answer(engine.submit(stopping).expect("fits")).0.len(), 7);
    for wrong in [0, 201] {
        let error = engine.submit(Request { forced_length: Some(wrong), ..forced.clone() }).err();
        assert!(matches!(error, Some(SubmitError::ForcedLength { .. })));
    }
}

#[test]
fn a_moved_request_continues_as_if_it_had_stayed() {
    let model = model();
    let other = EngineConfig { cpu: threads(1), token_budget: Some(8), ..config(&model) };
    let (first, second) = (engine(&model, config(&model)), engine(&model, other));
    let whole = request(3, 19, 40);
    let penalties = SamplingParams {
        presence_penalty: 0.7,
        frequency_penalty: 0.4,
        repetition_penalty: 1.2,
        ..whole.sampling.clone()
    };
    for sampling in [whole.sampling.clone(), penalties] {
        let whole = Request { sampling, ..whole.clone() };
        let (tokens, ..) = answer(first.submit(whole.clone()).expect("fits"));
        for cut in [1, 7, 13, 39] {
            let prompt = [&whole.prompt[..], &tokens[..cut]].concat();
            let moved = Request { prompt, generated: cut as u32, ..whole.clone() };
            let (rest, predictions, reason) = answer(second.submit(moved).expect("fits"));
            assert_eq!((&rest[..], reason), (&tokens[cut..], FinishReason::Length), "at {cut}");
            let ages: Vec<u32> = predictions.iter().map(|&(generated, _)| generated).collect();
            assert_eq!(ages, (cut as u32..40).collect::<Vec<_>>(), "ages on from {cut}");
        }
    }
    let of = |generated| Request { generated, ..whole.clone() };
    let refusal = |generated| second.submit(of(generated)).err().map(|error| error.to_string());
    assert!(refusal(19).expect("no prompt is left").contains("the prompt is empty"));
    let complete = Request { max_tokens: 5, ..of(5) };
    let error = second.submit(complete).err().expect("is refused").to_string();
    assert!(error.contains("5 tokens are generated already"), "{error}");
}

#[test]
fn a_cancelled_request_frees_its_index() {
    let engine = engine(&model(), config(&model()));
    let handle = engine.submit(request(1, 5, 200)).expect("fits");
    assert!(matches!(handle.recv_timeout(LIMIT), Some(Event::Token { .. })));
    handle.cancel();
    let (_, _, reason) = answer(handle);
    assert_eq!(reason, FinishReason::Cancelled);
    drop(engine.submit(request(2, 5, 200)).expect("fits"));
    let (tokens, _, reason) = answer(engine.submit(request(3, 5, 9)).expect("fits"));
    assert_eq!((tokens.len(), reason), (9, FinishReason::Length));
    let begin = Instant::now();
    while engine.live() > 0 {
        assert!(begin.elapsed() < LIMIT, "{} requests are left", engine.live());
        std::thread::yield_now();
    }
    assert_eq!(engine.stats().blocks_used, 0);
}

#[test]
fn what_can_never_be_served_is_refused_with_the_reason() {
    let model = model();
    let config = EngineConfig { kv_blocks: Some(4), queue: queue_of(4), ..config(&model) };
    let engine = engine(&model, config);
    let reason = |request: Request| match engine.submit(request) {
        Err(error) if error.is_invalid() => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("was taken"),
    };
    assert!(reason(request(0, 0, 5)).contains("prompt is empty"));
    assert!(reason(request(0, 5, u32::MAX)).contains("context"));
    assert!(reason(request(0, 40, 30)).contains("needs 5 KV blocks, the cache has 4"));
    let outside = Request::new(vec![model.config.vocab_size as u32], 1);
    assert!(reason(outside).contains("not in the vocabulary"));
    let hot = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
    assert!(reason(Request { sampling: hot, ..request(0, 5, 5) }).contains("temperature"));
}

#[test]
fn a_full_engine_says_so_and_a_dropped_one_ends_its_requests() {
    let model = model();
    let engine = engine(&model, EngineConfig { queue: queue_of(4), ..config(&model) });
    let handles: Vec<_> =
        (0..4).map(|i| engine.submit(request(i, 5, 200)).expect("fits")).collect();
    let full = engine.submit(request(9, 5, 5)).err();
    assert_eq!(full, Some(SubmitError::Full { max_requests: 4 }));
    drop(engine);
    for handle in handles {
        let (_, _, reason) = answer(handle);
        assert!(matches!(reason, FinishReason::Shutdown | FinishReason::Length));
    }
}

#[test]
fn a_policy_without_its_predictor_is_refused_with_what_to_do() {
    let error = |name: &str| {
        let policy = name.parse().expect("a policy");
        let built = Engine::new(model(), EngineConfig { policy, ..EngineConfig::default() });
        built.err().expect("refused").to_string()
    };
    for name in ["trail", "isrtf"] {
        let error = error(name);
        assert!(error.starts_with(&format!("policy {name} needs a probe")), "{error}");
        assert!(error.contains("--probe"), "{error}");
    }
    for name in ["sjf", "trail-bert", "ltr", "classification", "po", "rr-sjf"] {
        let error = error(name);
        assert!(error.starts_with(&format!("policy {name} needs a prompt-only")), "{error}");
    }
    let probe = Some(Probe::random(17, 0, 3));
    let wrong = Engine::new(model(), EngineConfig { probe, ..EngineConfig::default() });
    let error = wrong.err().expect("refused").to_string();
    assert!(error.contains("another model"), "{error}");
}

#[test]
fn alternatives_come_before_their_token_best_first() {
    let engine = engine(&model(), config(&model()));
    let sampling =
        SamplingParams { temperature: 0.0, top_logprobs: 3, ..SamplingParams::default() };
    let handle = engine.submit(Request { sampling, ..request(0, 5, 4) }).expect("fits");
    let mut alternatives = Vec::new();
    while let Some(event) = handle.recv_timeout(LIMIT) {
        match event {
            Event::Alternative { id, logprob } => alternatives.push((id, logprob)),
            Event::Token { id, logprob } => {
                assert_eq!(alternatives.len(), 3);
                assert_eq!(alternatives[0], (id, logprob), "greedy takes the best");
                assert!(alternatives.is_sorted_by(|a, b| a.1 >= b.1));
                alternatives.clear();
            }
            _ => {}
        }
    }
}

/// A NaN embedding: requests that feed its token, given or generated, end with an error; all others
/// go on, beside the faulty ones and on KV blocks that these left behind.
#[test]
fn logits_that_are_not_finite_end_their_request_alone() {
    let sound = model();
    let ask = |i: u64| request(i, 3 + (i as u32 * 13) % 40, 12);
    let sound_engine = engine(&sound, config(&sound));
    let handles: Vec<_> = (0..10).map(|i| sound_engine.submit(ask(i)).expect("fits")).collect();
    let expected: Vec<Vec<u32>> = handles.into_iter().map(|handle| answer(handle).0).collect();
    // A token that one answer alone has, before its last.
    let users = |token: u32| expected.iter().filter(move |answer| answer.contains(&token)).count();
    let bad =
        expected.iter().flat_map(|answer| &answer[..11]).find(|&&id| id > 50 && users(id) == 1);
    let bad = *bad.expect("such a token");
    let damaged = Arc::new(trail_test_support::damaged::with_nan_embedding((*sound).clone(), bad));
    let config = EngineConfig { kv_blocks: Some(12), ..config(&damaged) };
    let engine = engine(&damaged, config);
    for round in 0..3 {
        let handles: Vec<_> = (0..10)
            .map(|i| {
                let mut faulty = ask(i);
                let at = (i as usize * 5) % faulty.prompt.len();
                faulty.prompt[at] = bad;
                // A scored prompt ends at the first row that has no score.
                faulty.sampling.prompt_logprobs = (round == 1).then_some(2);
                (engine.submit(ask(i)).expect("fits"), engine.submit(faulty).expect("fits"))
            })
            .collect();
        for (index, (handle, faulty)) in handles.into_iter().enumerate() {
            let (tokens, _, reason) = answer(handle);
            let whole = &expected[index];
            let wanted = match whole.iter().position(|&id| id == bad) {
                Some(at) => (whole[..=at].to_vec(), FinishReason::Error),
                None => (whole.clone(), FinishReason::Length),
            };
            assert_eq!((tokens, reason), wanted, "round {round}, request {index}");
            let (tokens, _, reason) = answer(faulty);
            assert_eq!((tokens, reason), (vec![], FinishReason::Error), "round {round}: {index}");
        }
        assert_eq!((engine.live(), engine.stats().blocks_used), (0, 0));
    }
}
