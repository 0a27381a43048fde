//! Arithmetic of products with quantized weights.

use std::fmt;
use std::str::FromStr;

/// How products with quantized weights are computed. Float weights are the same in both: f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compute {
    /// Weights are widened to f32 and multiplied with f32 activations: the reference.
    Exact,
    /// Activations are quantized to 8 bits in blocks of 32, and multiplied as integers: as
    /// llama.cpp's, several times faster.
    #[default]
    Fast,
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compute::Exact => "exact",
            Compute::Fast => "fast",
        })
    }
}

impl FromStr for Compute {
    type Err = String;

    fn from_str(name: &str) -> Result<Compute, String> {
        let all = [Compute::Exact, Compute::Fast];
        let found = all.into_iter().find(|compute| compute.to_string() == name);
        found.ok_or_else(|| format!("unknown way to compute {name:?}: exact or fast"))
    }
}
