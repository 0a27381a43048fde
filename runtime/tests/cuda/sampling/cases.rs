//! Rows of the tests: logits that models, masks and accidents make, with any parameters.

use trail_runtime::backend::{Allowed, TokenMask};
use trail_runtime::engine::SamplingParams;
use trail_test_support::cuda::Chance;

/// One row of a test; `logits` of `None` is a padding row.
pub(super) struct Case {
    pub(super) logits: Option<Vec<f32>>,
    pub(super) params: SamplingParams,
    pub(super) prompt: Vec<u32>,
    pub(super) generated: Vec<u32>,
    pub(super) position: u32,
    pub(super) allowed: Allowed,
}

/// Shapes of logits that models, masks and accidents make.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Sharp, as at most positions.
    Peaked,
    /// Thousands of tokens in the nucleus.
    Flat,
    /// Few distinct values: ties everywhere.
    Tied,
    Equal,
    /// Most tokens at minus infinity.
    Masked,
    /// A NaN or plus infinity among them: a fault of the row.
    Broken,
    /// Nothing but minus infinity: a fault of the row.
    AllMasked,
    Extreme,
}

pub(super) const KINDS: [Kind; 8] = [
    Kind::Peaked,
    Kind::Flat,
    Kind::Tied,
    Kind::Equal,
    Kind::Masked,
    Kind::Broken,
    Kind::AllMasked,
    Kind::Extreme,
];

pub(super) fn logits(chance: &mut Chance, kind: Kind, vocab: usize) -> Vec<f32> {
    let mut made: Vec<f32> = (0..vocab)
        .map(|_| {
            let unit = chance.unit();
            match kind {
                Kind::Peaked | Kind::Broken => unit * unit * unit * 18.0,
                Kind::Flat => unit * 2.0,
                Kind::Tied => (unit * 4.0).round(),
                Kind::Equal => -3.25,
                Kind::Masked => {
                    if chance.below(20) == 0 {
                        unit * 5.0
                    } else {
                        f32::NEG_INFINITY
                    }
                }
                Kind::AllMasked => f32::NEG_INFINITY,
                Kind::Extreme => [f32::MAX, f32::MIN, 0.0, -0.0, 1e-40][chance.below(5)],
            }
        })
        .collect();
    if matches!(kind, Kind::Broken) {
        let at = chance.below(vocab);
        made[at] = if chance.below(2) == 0 { f32::NAN } else { f32::INFINITY };
    }
    made
}

fn params(chance: &mut Chance, vocab: usize) -> SamplingParams {
    let pick = |chance: &mut Chance, values: &[f32]| values[chance.below(values.len())];
    let penalised = chance.below(3) == 0;
    let maybe = |chance: &mut Chance, off: f32, values: &[f32]| {
        if penalised { pick(chance, values) } else { off }
    };
    SamplingParams {
        logit_bias: Vec::new(),
        temperature: pick(chance, &[0.0, 1e-6, 0.3, 0.8, 1.0, 1.0, 1.7, 100.0]),
        top_k: [0, 0, 1, 5, 50, 700, vocab as u32 - 1, vocab as u32, vocab as u32 + 5]
            [chance.below(9)],
        top_p: pick(chance, &[1.0, 1.0, 0.95, 0.9, 0.5, 0.999, 1e-9]),
        min_p: pick(chance, &[0.0, 0.0, 0.05, 1.0]),
        repetition_penalty: maybe(chance, 1.0, &[1.0, 1.3, 0.7, 100.0]),
        presence_penalty: maybe(chance, 0.0, &[0.0, 0.6, -0.5]),
        frequency_penalty: maybe(chance, 0.0, &[0.0, 0.4, -0.1]),
        seed: chance.next_u64(),
        top_logprobs: [0, 0, 1, 5, 20][chance.below(5)],
        prompt_logprobs: None,
    }
}

pub(super) fn case(chance: &mut Chance, kind: Kind, vocab: usize) -> Case {
    // Some ids lie outside the vocabulary: those are ignored.
    let mut tokens = |max: usize| -> Vec<u32> {
        let count = chance.below(max);
        (0..count).map(|_| chance.below(vocab + 2) as u32).collect()
    };
    let (prompt, generated) = (tokens(60), tokens(40));
    let position = chance.below(1 << 20) as u32;
    Case {
        logits: Some(logits(chance, kind, vocab)),
        params: params(chance, vocab),
        prompt,
        generated,
        position,
        allowed: allowed(chance, vocab),
    }
}

/// All tokens, or about half, few, one, or none.
fn allowed(chance: &mut Chance, vocab: usize) -> Allowed {
    let mut mask = TokenMask::none(vocab);
    let drawn = match chance.below(6) {
        0..=1 => return Allowed::Any,
        2 => vocab / 2 + 1,
        3 => 3,
        4 => 1,
        _ => 0,
    };
    (0..drawn).for_each(|_| mask.allow(chance.below(vocab) as u32));
    Allowed::Mask(mask.into())
}
