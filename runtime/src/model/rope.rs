//! Rotary position embedding: its base, and its scalings beyond the trained context.

/// Scaling of the rotary frequencies beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Plain RoPE.
    None,
    /// Position interpolation: every frequency divided by `factor`.
    Linear {
        /// Scaling factor, > 0.
        factor: f64,
    },
    /// Llama 3.1's piecewise scaling: low frequencies divided, high ones kept, between them a ramp.
    Llama3 {
        /// Scaling factor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the original training, tokens.
        original_context: f64,
    },
    /// YaRN: by the turns of a frequency in the original context.
    Yarn(Yarn),
    /// LongRoPE (arXiv 2402.13753): each frequency is divided by its factor in
    /// [`ModelConfig::long_rope`](super::ModelConfig).
    LongRope {
        /// Factor of queries and of keys.
        attention_factor: f64,
    },
}

/// YaRN's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Divisor of the low frequencies.
    pub factor: f64,
    /// Frequencies with more turns in the original context are kept.
    pub beta_fast: f64,
    /// Frequencies with fewer turns in it are divided by `factor`; between the two is a ramp.
    pub beta_slow: f64,
    /// Context length of the original training, tokens.
    pub original_context: f64,
    /// True if the ramp begins and ends at whole dimensions.
    pub truncate: bool,
    /// Factor of queries and of keys.
    pub attention_factor: f64,
}

impl Yarn {
    /// The factor of queries and keys that the paper gives for a factor of the context.
    pub fn attention_factor_of(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }

    /// Share of the scaled frequency in that of pair `i`, of heads of `head_dim` and of base
    /// `theta`.
    fn ramp(&self, i: usize, head_dim: usize, theta: f64) -> f64 {
        let dim = head_dim as f64;
        let turns_at = |turns: f64| {
            let wavelengths = self.original_context / (turns * 2.0 * std::f64::consts::PI);
            dim * wavelengths.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (turns_at(self.beta_fast), turns_at(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        ((i as f64 - low) / (high - low)).clamp(0.0, 1.0)
    }
}

/// LongRoPE's divisors of the inverse frequencies: `[rotary_dim / 2]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Context length of the original training, tokens.
    pub original_context: f64,
    /// Divisors where the model serves contexts up to the original one.
    pub short: Vec<f32>,
    /// Divisors where it serves longer ones.
    pub long: Vec<f32>,
}

/// Rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling beyond the trained context.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Inverse frequencies, scaled: `[head_dim / 2]`, in f64 radians per token. `head_dim`: the
    /// dimensions that are rotated.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f64> {
        let half = head_dim / 2;
        let frequency = |i: usize| self.theta.powf(-(i as f64) / half as f64);
        let scaled = |i: usize| match self.scaling {
            RopeScaling::Yarn(yarn) => {
                let share = yarn.ramp(i, head_dim, self.theta);
                frequency(i) * (share / yarn.factor + 1.0 - share)
            }
            scaling => scale_frequency(frequency(i), scaling),
        };
        (0..half).map(scaled).collect()
    }

    /// Factor of queries and of keys.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            RopeScaling::LongRope { attention_factor } => attention_factor,
            _ => 1.0,
        }
    }
}

/// Applies `scaling` to one inverse frequency (llama3: the rule of the Llama 3.1 release).
fn scale_frequency(freq: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None | RopeScaling::Yarn(_) | RopeScaling::LongRope { .. } => freq,
        RopeScaling::Linear { factor } => freq / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let wavelength = 2.0 * std::f64::consts::PI / freq;
            if wavelength < original_context / high_freq_factor {
                freq
            } else if wavelength > original_context / low_freq_factor {
                freq / factor
            } else {
                let smooth = (original_context / wavelength - low_freq_factor)
                    / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * freq / factor + smooth * freq
            }
        }
    }
}
