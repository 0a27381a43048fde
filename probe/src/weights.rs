//! The MLP's weights in the file's form: row-major, unpacked. Used for loading, saving and
//! training.

use trail_platform::Rng;

use crate::bins::MAX_BINS;

/// Hidden units of the paper's probe (TRAIL section 3.1).
pub const HIDDEN: usize = 512;

/// `logits = output_weight * relu(hidden_weight * x + hidden_bias) + output_bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Width of an activation, the model's hidden size.
    pub d: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Bins of remaining length, at most [`MAX_BINS`].
    pub bins: usize,
    /// `[hidden, d]`.
    pub hidden_weight: Vec<f32>,
    /// `[hidden]`.
    pub hidden_bias: Vec<f32>,
    /// `[bins, hidden]`.
    pub output_weight: Vec<f32>,
    /// `[bins]`.
    pub output_bias: Vec<f32>,
}

impl Weights {
    /// Weights drawn uniformly from ±1/sqrt(fan-in), the same for the same seed: for tests and
    /// timing.
    pub fn random(d: usize, hidden: usize, bins: usize, seed: u64) -> Weights {
        let mut rng = Rng::from_state(seed);
        let mut draw = |len: usize, fan_in: usize| -> Vec<f32> {
            let scale = 1.0 / (fan_in as f32).sqrt();
            (0..len).map(|_| scale * rng.signed()).collect()
        };
        Weights {
            d,
            hidden,
            bins,
            hidden_weight: draw(hidden * d, d),
            hidden_bias: draw(hidden, d),
            output_weight: draw(bins * hidden, hidden),
            output_bias: draw(bins, hidden),
        }
    }

    /// Panics unless the lengths of the tensors match the sizes.
    pub(crate) fn check(&self) {
        assert!(self.d > 0 && self.hidden > 0, "an MLP without inputs or hidden units");
        assert!((1..=MAX_BINS).contains(&self.bins), "{} bins, at most {MAX_BINS}", self.bins);
        assert_eq!(self.hidden_weight.len(), self.hidden * self.d);
        assert_eq!(self.hidden_bias.len(), self.hidden);
        assert_eq!(self.output_weight.len(), self.bins * self.hidden);
        assert_eq!(self.output_bias.len(), self.bins);
    }
}
