//! Distributions of a trained head for collected answers.

use trail_probe::{Beside, Head, Partials, PromptSums, Rows};

/// Rows of a pass of the probe's MLP.
const PASS_ROWS: usize = 96;

/// A head with its working memory.
pub struct Inference<'a> {
    head: &'a Head,
    partials: Partials,
    prompt: PromptSums,
}

impl<'a> Inference<'a> {
    /// One of `head`.
    pub fn new(head: &'a Head) -> Inference<'a> {
        Inference { head, partials: Partials::new(head, PASS_ROWS), prompt: head.prompt_sums() }
    }

    /// The distributions `[rows][bins]` for one answer to a prompt of `prompt_tokens` tokens:
    /// `activations` `[rows, d]` after so many `generated` tokens each, the mean over the prompt
    /// first.
    pub fn of_answer(
        &mut self,
        prompt_tokens: u32,
        generated: &[u32],
        activations: &[f32],
    ) -> Vec<Vec<f32>> {
        let (d, bins) = (self.head.d(), self.head.bins());
        assert_eq!(generated.first(), Some(&0), "the prompt comes first");
        self.head.read_prompt(&activations[..d], prompt_tokens, &self.partials, &mut self.prompt);
        let mut all = Vec::new();
        let passes = activations.chunks(PASS_ROWS * d).zip(generated.chunks(PASS_ROWS));
        for (activations, generated) in passes {
            let prompt = Some(&self.prompt);
            let beside = |row: usize| Beside { generated: generated[row], prompt };
            let mut out = vec![0.0; generated.len() * bins];
            let rows = Rows { activations, beside: &beside };
            self.head.forward(rows, generated.len(), &self.partials, &mut out);
            all.extend(out.chunks_exact(bins).map(<[f32]>::to_vec));
        }
        all
    }
}
