//! 2,000 requests of random conversations, under a random policy in a random pool, with the prefix
//! cache and speculation: each answer is what the engine says without both.

use std::collections::VecDeque;

use trail_platform::Rng;

use super::prefix::{Answer, collect, plain};
use super::speculation::assert_equal;
use super::*;
use crate::engine::Speculate;

const REQUESTS: usize = 2_000;
const WORLDS: usize = 40;
const TURNS: usize = 4;

/// The next turn after `history`: new tokens, or such as were said before.
fn next_turn(rng: &mut Rng, mut history: Vec<u32>) -> Request {
    for _ in 0..1 + rng.below(24) {
        let quoted = history.len() > 8 && rng.below(3) > 0;
        let at = rng.below(history.len() as u64) as usize;
        history.push(if quoted { history[at] } else { rng.below(50) as u32 });
    }
    let mut request = Request::new(history, 1 + rng.below(30) as u32);
    request.sampling.seed = rng.below(1 << 40);
    request.sampling.temperature = [0.0, 0.3, 1.0][rng.below(3) as usize];
    request.sampling.repetition_penalty = [1.0, 1.2][rng.below(2) as usize];
    request.sampling.top_logprobs = [0, 2][rng.below(2) as usize];
    request.cache_salt = vec![b'x'; rng.below(2) as usize];
    request.ignore_eos = rng.below(2) > 0;
    request.true_length = Some(request.max_tokens);
    request
}

/// A beginning that several conversations have.
fn beginning(rng: &mut Rng) -> Vec<u32> {
    let of = rng.below(3) as u32;
    (0..20 + 16 * of).map(|at| (at * 7 + of) % 50).collect()
}

/// Lets `engine` answer random conversations, eight at once, with one of eight requests cancelled,
/// until `requests` were asked. Returns the requests with their answers.
fn converse_at_random(
    rng: &mut Rng,
    engine: &Engine,
    requests: usize,
) -> (Vec<Request>, Vec<Answer>) {
    let mut live = VecDeque::new();
    let (mut asked, mut answered) = (0, (Vec::new(), Vec::new()));
    while asked < requests || !live.is_empty() {
        if asked < requests && live.len() < 8 {
            let history = beginning(rng);
            live.push_back(ask(rng, engine, 0, history));
            asked += 1;
            continue;
        }
        let (turn, request, handle): (usize, Request, RequestHandle) = live.pop_front().unwrap();
        if rng.below(8) == 0 {
            handle.try_recv();
            continue;
        }
        let answer = collect(&handle);
        if turn + 1 < TURNS && asked < requests {
            let history = [&request.prompt[..], &answer.tokens].concat();
            live.push_back(ask(rng, engine, turn + 1, history));
            asked += 1;
        }
        answered.0.push(request);
        answered.1.push(answer);
    }
    answered
}

fn ask(
    rng: &mut Rng,
    engine: &Engine,
    turn: usize,
    history: Vec<u32>,
) -> (usize, Request, RequestHandle) {
    let request = next_turn(rng, history);
    let handle = engine.submit(request.clone()).unwrap();
    (turn, request, handle)
}

#[test]
fn answers_of_random_turns_are_those_without_cache_and_speculation() {
    let model = model();
    let mut rng = Rng::new(32);
    let reference = engine(&model, EngineConfig { replays: true, ..plain() });
    let (mut cached, mut accepted, mut evictions) = (0, 0, 0);
    for world in 0..WORLDS {
        let (name, _) = PolicyKind::HELP[rng.below(PolicyKind::HELP.len() as u64) as usize];
        let config = EngineConfig {
            // The longest conversation takes 17.
            kv_blocks: Some([18, 30, 400][rng.below(3) as usize]),
            speculate: if rng.below(2) > 0 { Speculate::Auto } else { Speculate::Ngram },
            // Policies rank by the probe or by nothing.
            replays: true,
            ..config(&model, name.parse().unwrap())
        };
        let engine = engine(&model, config);
        let (requests, answers) = converse_at_random(&mut rng, &engine, REQUESTS / WORLDS);
        cached += answers.iter().map(|answer| answer.cached_tokens).sum::<u32>();
        accepted += answers.iter().map(|answer| answer.accepted_tokens).sum::<u32>();
        let ask = |request| collect(&reference.submit(request).unwrap());
        let expected: Vec<Answer> = requests.into_iter().map(ask).collect();
        assert_equal(answers, &expected, &format!("world {world}, {name}"));
        empty(&engine);
        evictions += engine.stats().evictions;
        assert_eq!(engine.stats().blocks_used, 0);
    }
    assert!(
        cached > 10_000 && accepted > 1_000 && evictions > 100,
        "{cached}, {accepted}, {evictions}"
    );
}
