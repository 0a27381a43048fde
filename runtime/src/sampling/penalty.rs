//! Penalties for tokens of prompt and output, and their removal after sampling.

use crate::backend::{MAX_LOGIT_BIAS, SamplingParams};

/// Token ids of a request so far. Ids outside the vocabulary are ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// The tokens generated so far.
    pub generated: &'a [u32],
}

/// Bit of a count that is set if the token is in the prompt; the bits below it count occurrences in
/// the output.
const IN_PROMPT: u32 = 1 << 31;

/// Scratch with which penalties cost O(history), independent of the vocabulary size.
pub(super) struct Penalties {
    /// Count of each token `[vocab]`; all zero between calls.
    counts: Vec<u32>,
    /// Original value of each changed logit: (token, logit).
    changed: Vec<(u32, f32)>,
}

impl Penalties {
    pub(super) fn new(vocab_size: usize) -> Self {
        // A biased token can be penalised, too.
        let changed = Vec::with_capacity(vocab_size + MAX_LOGIT_BIAS);
        Penalties { counts: vec![0; vocab_size], changed }
    }

    /// Applies bias and penalties of `params` to `logits`; returns true if any logit was changed.
    ///
    /// As in vLLM: bias, repetition over prompt and output, then frequency and presence over the
    /// output.
    pub(super) fn apply(
        &mut self,
        logits: &mut [f32],
        params: &SamplingParams,
        history: History<'_>,
    ) -> bool {
        for &(id, bias) in &params.logit_bias {
            let logit = &mut logits[id as usize];
            self.changed.push((id, *logit));
            *logit = biased(*logit, bias);
        }
        if !params.has_penalties() {
            return !self.changed.is_empty();
        }
        let repetition = params.repetition_penalty != 1.0;
        let prompt = if repetition { history.prompt } else { &[] };
        self.count_tokens(prompt, history.generated);
        for &id in prompt.iter().chain(history.generated) {
            // Taking the count makes later occurrences of the token no-ops, and zeroes the scratch.
            let count = self.counts.get_mut(id as usize).map_or(0, std::mem::take);
            if count != 0 {
                let logit = &mut logits[id as usize];
                self.changed.push((id, *logit));
                *logit = penalised(*logit, count & !IN_PROMPT, params);
            }
        }
        !self.changed.is_empty()
    }

    /// Restores every changed logit, bit for bit.
    pub(super) fn undo(&mut self, logits: &mut [f32]) {
        // Backwards, as a logit can have changed twice.
        for (id, logit) in self.changed.drain(..).rev() {
            logits[id as usize] = logit;
        }
    }

    fn count_tokens(&mut self, prompt: &[u32], generated: &[u32]) {
        for &id in prompt {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count |= IN_PROMPT;
            }
        }
        for &id in generated {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count += 1;
            }
        }
    }
}

fn biased(logit: f32, bias: f32) -> f32 {
    if logit == f32::NEG_INFINITY {
        return logit;
    }
    // A finite logit must stay finite.
    (logit + bias).clamp(f32::MIN, f32::MAX)
}

/// Penalised logit of a token that occurs `count` times in the output.
fn penalised(logit: f32, count: u32, params: &SamplingParams) -> f32 {
    if logit == f32::NEG_INFINITY {
        return logit;
    }
    let repetition = params.repetition_penalty;
    let repeated = if logit > 0.0 { logit / repetition } else { logit * repetition };
    let presence = if count > 0 { params.presence_penalty } else { 0.0 };
    // A finite logit must stay finite: infinity would mask the token or break the softmax.
    (repeated - count as f32 * params.frequency_penalty - presence).clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seen_token_is_penalised_once_and_restored() {
        let mut penalties = Penalties::new(5);
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Default::default()
        };
        let raw = [4.0, -4.0, 4.0, 4.0, f32::NEG_INFINITY];
        let mut logits = raw;
        let history = History { prompt: &[0, 0, 1, 4, 99], generated: &[1, 2, 2, 77] };
        assert!(penalties.apply(&mut logits, &params, history));
        assert_eq!(logits, [2.0, -8.0 - 0.25 - 0.5, 2.0 - 0.5 - 0.5, 4.0, f32::NEG_INFINITY]);
        penalties.undo(&mut logits);
        assert_eq!(logits, raw);
        assert!(penalties.counts.iter().all(|&count| count == 0) && penalties.changed.is_empty());
    }

    #[test]
    fn bias_comes_before_penalties_and_is_undone() {
        let mut penalties = Penalties::new(4);
        let params = SamplingParams {
            logit_bias: vec![(1, 3.0), (2, -100.0), (3, 7.0)],
            repetition_penalty: 2.0,
            ..Default::default()
        };
        let raw = [1.0, 1.0, f32::MIN, f32::NEG_INFINITY];
        let mut logits = raw;
        let history = History { prompt: &[0, 1], generated: &[] };
        assert!(penalties.apply(&mut logits, &params, history));
        assert_eq!(logits, [0.5, 2.0, f32::MIN, f32::NEG_INFINITY]);
        penalties.undo(&mut logits);
        assert_eq!(logits, raw);
        let params = SamplingParams { repetition_penalty: 1.0, ..params };
        assert!(penalties.apply(&mut logits, &params, history));
        assert_eq!(logits, [1.0, 4.0, f32::MIN, f32::NEG_INFINITY]);
        penalties.undo(&mut logits);
        assert_eq!(logits, raw);
    }

    #[test]
    fn presence_and_frequency_ignore_the_prompt() {
        let mut penalties = Penalties::new(3);
        let params =
            SamplingParams { presence_penalty: 1.0, frequency_penalty: 1.0, ..Default::default() };
        let mut logits = [1.0; 3];
        assert!(!penalties.apply(
            &mut logits,
            &params,
            History { prompt: &[0, 1, 2], generated: &[] }
        ));
        assert_eq!(logits, [1.0; 3]);
    }

    #[test]
    fn no_penalty_leaves_the_history_unread() {
        let mut penalties = Penalties::new(3);
        let mut logits = [1.0; 3];
        assert!(!penalties.apply(
            &mut logits,
            &SamplingParams::default(),
            History { prompt: &[0], generated: &[1] }
        ));
        assert_eq!(logits, [1.0; 3]);
    }

    #[test]
    fn extreme_logits_stay_finite() {
        let mut penalties = Penalties::new(1);
        for (logit, repetition_penalty) in [(f32::MAX, 0.01), (f32::MIN, 100.0)] {
            let params = SamplingParams { repetition_penalty, ..Default::default() };
            let mut logits = [logit];
            penalties.apply(&mut logits, &params, History { prompt: &[0], generated: &[] });
            assert_eq!(logits, [logit]);
            penalties.undo(&mut logits);
        }
    }
}
