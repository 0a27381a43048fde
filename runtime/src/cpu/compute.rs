//! Arithmetic of products with quantized and with bf16 weights.

use std::fmt;
use std::str::FromStr;

/// How products with quantized and with bf16 weights are computed. Other float weights are
/// multiplied in f32 by both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compute {
    /// Weights are widened to f32 and multiplied with f32 activations: the reference.
    Exact,
    /// Activations for quantized weights are quantized to 8 bits in blocks of 32, and multiplied as
    /// integers. Activations for bf16 weights are rounded to bf16, and the products are added in
    /// f32, on CPUs where that is faster than f32 (AMD's with AVX-512 BF16). Both as llama.cpp.
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
