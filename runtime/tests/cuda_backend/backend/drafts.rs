//! Draft tokens: each row samples what it would have sampled alone, whatever is right; other steps
//! are replayed graphs.

use std::sync::Arc;

use super::play::CONTEXT;
use super::{backend, models, options};
use trail_runtime::backend::{
    Allowed, AllowedTokens, BLOCK_TOKENS, Backend, Batch, SamplingInput, SamplingInputs,
    SamplingParams, Step, TokenMask,
};
use trail_runtime::model::Model;

const ANSWER: usize = 40;
const PROMPT: usize = 21;

/// A request with its tokens, those of the drafts included.
struct Known<'a> {
    params: &'a SamplingParams,
    tokens: &'a [u32],
    allowed: Option<&'a dyn AllowedTokens>,
}

impl SamplingInputs for Known<'_> {
    fn of(&self, _request: u32) -> SamplingInput<'_> {
        let (prompt, generated) = self.tokens.split_at(PROMPT);
        SamplingInput { params: self.params, prompt, generated, allowed: self.allowed }
    }
}

/// An answer, and the steps that it took.
#[derive(Default)]
struct Answer {
    tokens: Vec<u32>,
    steps: u64,
    replayed: u64,
    drafts: usize,
    accepted: usize,
}

/// The answer to a prompt; `expected` are proposed, every fifth of these wrong.
fn answer(
    model: &Arc<Model>,
    params: &SamplingParams,
    allowed: Option<&dyn AllowedTokens>,
    expected: &[u32],
) -> Answer {
    let mut backend = backend(model, &options());
    let mut tokens: Vec<u32> = (0..PROMPT as u32).map(|at| at * 7 % 50).collect();
    let blocks: Vec<u32> = (0..(CONTEXT / BLOCK_TOKENS) as u32).rev().collect();
    let (mut batch, mut computed, mut answer) = (Batch::default(), 0, Answer::default());
    while tokens.len() < PROMPT + ANSWER {
        let known = tokens.len();
        let room = (BLOCK_TOKENS - known % BLOCK_TOKENS) % BLOCK_TOKENS;
        let rest = if computed == 0 { &[] } else { expected.get(known - PROMPT..).unwrap_or(&[]) };
        let wrong = |(at, &token): (usize, &u32)| match (known + at).is_multiple_of(5) {
            true => (token + 1) % 50,
            false => token,
        };
        tokens.extend(rest.iter().enumerate().map(wrong).take(room.min(4)));
        let drafts = tokens.len() - known;
        batch.clear();
        match drafts {
            0 => batch.push(3, computed as u32, &tokens[computed..], &blocks, true),
            _ => batch.push_drafts(3, computed as u32, &tokens[computed..], &blocks),
        }
        answer.steps += 1;
        let sampling = Known { params, tokens: &tokens, allowed };
        let step = Step { number: answer.steps, batch: &batch, sampling: &sampling, tap: None };
        backend.launch(&step).unwrap();
        let mut results = Vec::new();
        backend.collect(&mut results).unwrap();
        assert_eq!(results.len(), 1 + drafts);
        let results: Vec<u32> = results.into_iter().map(|of| of.expect("finite").id).collect();
        let right = tokens[known..].iter().zip(&results).take_while(|(a, b)| a == b).count();
        computed = known + right;
        tokens.truncate(known);
        tokens.extend_from_slice(&results[..=right]);
        (answer.drafts, answer.accepted) = (answer.drafts + drafts, answer.accepted + right);
    }
    answer.replayed = backend.replayed_steps();
    answer.tokens = tokens.split_off(PROMPT);
    answer.tokens.truncate(ANSWER);
    answer
}

#[test]
fn cuda_drafts_change_no_token_and_other_steps_are_graphs() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    for params in [
        greedy.clone(),
        SamplingParams { repetition_penalty: 1.3, ..greedy.clone() },
        SamplingParams { frequency_penalty: 0.4, presence_penalty: 0.3, ..greedy },
        SamplingParams { seed: 5, top_p: 0.9, frequency_penalty: 0.2, ..SamplingParams::default() },
    ] {
        let plain = answer(&model, &params, None, &[]);
        assert_eq!((plain.steps, plain.drafts), (ANSWER as u64, 0));
        // All but the prompt's.
        assert_eq!(plain.replayed, plain.steps - 1);
        let found = answer(&model, &params, None, &plain.tokens);
        assert_eq!(found.tokens, plain.tokens, "{params:?}");
        assert!(found.accepted > 10 && found.drafts > found.accepted + 3, "{params:?}");
        assert!(found.steps < plain.steps && found.replayed < found.steps, "{params:?}");
    }
}

/// By position: a token alone, those of a residue class, any.
struct Cycle {
    vocab_size: usize,
}

impl AllowedTokens for Cycle {
    fn after(&self, generated: usize) -> Allowed {
        match generated % 4 {
            0 => Allowed::Only((generated * 7 % self.vocab_size) as u32),
            1 => {
                let mut mask = TokenMask::none(self.vocab_size);
                let ids = 0..self.vocab_size as u32;
                ids.filter(|id| id % 5 == 2).for_each(|id| mask.allow(id));
                Allowed::Mask(mask.into())
            }
            _ => Allowed::Any,
        }
    }
}

/// Answers keep to their masks, with draft tokens and without, and steps with masks are graphs,
/// too.
#[test]
fn cuda_answers_keep_to_their_masks() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let cycle = Cycle { vocab_size: model.config.vocab_size };
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    for params in [
        SamplingParams { repetition_penalty: 1.3, ..greedy },
        SamplingParams { seed: 5, top_p: 0.9, top_k: 30, ..SamplingParams::default() },
    ] {
        let plain = answer(&model, &params, Some(&cycle), &[]);
        assert_eq!(plain.replayed, plain.steps - 1);
        for (at, &token) in plain.tokens.iter().enumerate() {
            match cycle.after(at) {
                Allowed::Only(only) => assert_eq!(token, only, "at {at}"),
                Allowed::Mask(mask) => assert!(mask.allows(token), "at {at}: {token}"),
                Allowed::Any => {}
            }
        }
        let found = answer(&model, &params, Some(&cycle), &plain.tokens);
        assert!(found.accepted > 10 && found.steps < plain.steps, "{params:?}");
        // A draw at the border of two tokens can differ, as another number of rows sums in another
        // order.
        if params.temperature == 0.0 {
            assert_eq!(found.tokens, plain.tokens, "{params:?}");
        }
        let free = answer(&model, &params, None, &[]);
        assert_ne!(free.tokens, plain.tokens);
    }
}
