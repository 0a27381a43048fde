//! Outputs of a head for any number of rows, on the calling thread.

use crate::head::Head;
use crate::inputs::{Beside, Rows};
use crate::partials::Partials;

/// Rows of a pass.
const PASS_ROWS: usize = 96;

/// The first row of activations `[rows, d]` that has NaN or infinity: it predicts nothing.
pub fn non_finite_row(activations: &[f32], d: usize) -> Option<usize> {
    activations.iter().position(|value| !value.is_finite()).map(|at| at / d)
}

impl Head {
    /// The probabilities `[rows, bins]` for `activations` `[rows, d]` after so many `generated`
    /// tokens each, one where that is empty. `prompt` is the mean over the prompt's activations and
    /// its tokens; a head that reads the prompt needs it.
    pub fn distributions(
        &self,
        activations: &[f32],
        generated: &[u32],
        prompt: Option<(&[f32], u32)>,
    ) -> Vec<f32> {
        let (d, bins) = (self.d(), self.bins());
        let rows = activations.len() / d;
        let partials = Partials::new(self, rows.clamp(1, PASS_ROWS));
        let mut sums = self.prompt_sums();
        if let Some((mean, tokens)) = prompt {
            self.read_prompt(mean, tokens, &partials, &mut sums);
        }
        let mut out = vec![0.0; rows * bins];
        let passes = activations.chunks(PASS_ROWS * d).zip(out.chunks_mut(PASS_ROWS * bins));
        for (pass, (activations, out)) in passes.enumerate() {
            let beside = |row: usize| Beside {
                generated: generated.get(pass * PASS_ROWS + row).copied().unwrap_or(1),
                prompt: Some(&sums),
            };
            let of = Rows { activations, beside: &beside };
            self.forward(of, activations.len() / d, &partials, out);
        }
        out
    }
}
