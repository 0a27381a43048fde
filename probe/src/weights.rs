//! The MLP's weights in the file's form: row-major, unpacked. Used for loading, saving and
//! training.

use trail_platform::Rng;

use crate::age::AGES;
use crate::bins::MAX_BINS;
use crate::inputs::Inputs;

/// Hidden units of the paper's probe (TRAIL section 3.1).
pub const HIDDEN: usize = 512;

/// Meaning of a head's outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadKind {
    /// The tokens until the answer ends or is cut.
    #[default]
    Bins,
    /// The tokens until it would end: of an answer that was cut in training only the least is
    /// known (discrete-time survival, censored at the cut).
    Survival,
}

impl HeadKind {
    /// Every kind.
    pub const ALL: [HeadKind; 2] = [HeadKind::Bins, HeadKind::Survival];

    /// The name, in files and as options have it.
    pub fn name(self) -> &'static str {
        match self {
            HeadKind::Bins => "bins",
            HeadKind::Survival => "survival",
        }
    }
}

/// `logits = output_weight * relu(hidden_weight * x + hidden_bias + p + a) + output_bias`, where p
/// is the prompt's share and a that of the age, if the probe reads them.
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
    /// Meaning of its outputs.
    pub kind: HeadKind,
    /// Weights of the prompt; `None` where it does not read it.
    pub prompt: Option<PromptWeights>,
    /// `[AGES, hidden]`, added to `hidden_bias` by [class of age](crate::age_class); empty where it
    /// does not read the age.
    pub age_bias: Vec<f32>,
}

/// Weights of the prompt's share: `mean_weight * mean + length_weight * ln(tokens)`.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptWeights {
    /// `[hidden, d]`, of the mean over the prompt's activations.
    pub mean_weight: Vec<f32>,
    /// `[hidden]`, of the natural logarithm of the prompt's length in tokens.
    pub length_weight: Vec<f32>,
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
            kind: HeadKind::Bins,
            prompt: None,
            age_bias: Vec::new(),
        }
    }

    /// The same with weights for `inputs`, drawn in the same way from another `seed`.
    pub fn with_random(mut self, inputs: Inputs, seed: u64) -> Weights {
        let other = Weights::random(self.d, self.hidden, 1, seed);
        self.prompt = inputs.prompt.then(|| PromptWeights {
            mean_weight: other.hidden_weight,
            length_weight: other.hidden_bias.clone(),
        });
        self.age_bias = match inputs.age {
            true => Weights::random(AGES, self.hidden, 1, seed + 1).hidden_weight,
            false => Vec::new(),
        };
        self
    }

    /// The biases of the first layer at a class of age, `[hidden]`.
    pub fn biases(&self, age: usize) -> Vec<f32> {
        let mut biases = self.hidden_bias.clone();
        let added = self.age_bias.chunks_exact(self.hidden).nth(age).unwrap_or_default();
        biases.iter_mut().zip(added).for_each(|(bias, added)| *bias += added);
        biases
    }

    /// The inputs beside the activation.
    pub fn inputs(&self) -> Inputs {
        Inputs { prompt: self.prompt.is_some(), age: !self.age_bias.is_empty() }
    }

    /// Panics unless the lengths of the tensors match the sizes.
    pub(crate) fn check(&self) {
        assert!(self.d > 0 && self.hidden > 0, "an MLP without inputs or hidden units");
        assert!((1..=MAX_BINS).contains(&self.bins), "{} bins, at most {MAX_BINS}", self.bins);
        assert_eq!(self.hidden_weight.len(), self.hidden * self.d);
        assert_eq!(self.hidden_bias.len(), self.hidden);
        assert_eq!(self.output_weight.len(), self.bins * self.hidden);
        assert_eq!(self.output_bias.len(), self.bins);
        assert!([0, AGES * self.hidden].contains(&self.age_bias.len()), "biases of every age");
        if let Some(prompt) = &self.prompt {
            assert_eq!(prompt.mean_weight.len(), self.hidden * self.d);
            assert_eq!(prompt.length_weight.len(), self.hidden);
        }
    }
}
