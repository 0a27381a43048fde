//! Options of a model's length predictions.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

/// Values of `--filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FilterName {
    /// None: each prediction counts alone.
    Raw,
    /// Over bins of remaining tokens, as TRAIL's.
    Bins,
    /// Over total lengths, at the resolution of tokens.
    Tokens,
}

/// A value of `--length-predictor`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PredictorKind {
    /// This length for every request, tokens.
    Constant(f32),
    /// As long as the prompt.
    PromptLength,
    /// The probe, on the mean of the prompt's activations.
    PromptProbe,
    /// The client's estimate, else the predictor beside the model.
    Hint,
    /// A trained one.
    File(PathBuf),
}

/// Longest answer of `constant`, tokens: that of any context.
const MAX_TOKENS: u32 = 1 << 24;

impl FromStr for PredictorKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "prompt-length" => return Ok(PredictorKind::PromptLength),
            "prompt-probe" => return Ok(PredictorKind::PromptProbe),
            "hint" => return Ok(PredictorKind::Hint),
            _ => {}
        }
        let Some(tokens) = text.strip_prefix("constant") else {
            return Ok(PredictorKind::File(text.into()));
        };
        let tokens = tokens.strip_prefix(':').and_then(|tokens| tokens.parse().ok());
        match tokens.filter(|tokens| (1..=MAX_TOKENS).contains(tokens)) {
            Some(tokens) => Ok(PredictorKind::Constant(tokens as f32)),
            None => Err(format!("give constant:TOKENS, from 1 to {MAX_TOKENS}")),
        }
    }
}

/// Options of probe and prompt-only predictor.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub(crate) struct PredictionArgs {
    /// The remaining-length probe [default: probe.safetensors beside the model, or a bundled one
    /// that was trained for it]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) probe: Option<PathBuf>,
    /// Take a probe or a length predictor that was trained for another model
    #[arg(long, global = true)]
    pub(crate) force_probe: bool,
    /// Filter of the probe's predictions [default: that of the probe's file]
    #[arg(long, global = true, value_enum)]
    pub(crate) filter: Option<FilterName>,
    /// Predictor of the answer's length from the prompt alone: a file of trail-rt predictor train,
    /// constant:TOKENS, prompt-length (as long as the prompt), prompt-probe (the probe, once the
    /// prompt is prefilled), or hint (nvext.agent_hints.osl of the request, else
    /// predictor.safetensors) [default: predictor.safetensors beside the model or its probe]
    #[arg(long, global = true, value_name = "KIND")]
    pub(crate) length_predictor: Option<PredictorKind>,
    /// Folder of the encoder of a length predictor over embeddings [default: encoder beside its
    /// file]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) encoder: Option<PathBuf>,
}
