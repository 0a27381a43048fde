//! Validation of sampling parameters.

use crate::backend::{MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, SamplingParams};

/// Maximum temperature: above it any model's distribution is nearly uniform.
const MAX_TEMPERATURE: f32 = 100.0;
/// Minimum repetition penalty: smaller ones could overflow logits to infinity.
const MIN_REPETITION_PENALTY: f32 = 0.01;
const MAX_REPETITION_PENALTY: f32 = 100.0;
/// Bound of presence and frequency penalties, either sign (OpenAI's).
const MAX_ADDITIVE_PENALTY: f32 = 2.0;

/// Rejects parameters out of range, and NaN; the error is one line that names the parameter and its
/// range.
pub fn validate(params: &SamplingParams) -> Result<(), String> {
    let additive = -MAX_ADDITIVE_PENALTY..=MAX_ADDITIVE_PENALTY;
    let repetition = MIN_REPETITION_PENALTY..=MAX_REPETITION_PENALTY;
    inside("temperature", params.temperature, 0.0..=MAX_TEMPERATURE)?;
    if !(params.top_p > 0.0 && params.top_p <= 1.0) {
        return Err(format!("top_p must be above 0 and at most 1, not {}", params.top_p));
    }
    inside("min_p", params.min_p, 0.0..=1.0)?;
    inside("repetition_penalty", params.repetition_penalty, repetition)?;
    inside("presence_penalty", params.presence_penalty, additive.clone())?;
    inside("frequency_penalty", params.frequency_penalty, additive)?;
    alternatives("top_logprobs", params.top_logprobs)?;
    alternatives("prompt_logprobs", params.prompt_logprobs.unwrap_or(0))?;
    logit_bias(&params.logit_bias)
}

fn logit_bias(bias: &[(u32, f32)]) -> Result<(), String> {
    if bias.len() > MAX_LOGIT_BIAS {
        return Err(format!(
            "logit_bias must have at most {MAX_LOGIT_BIAS} entries, not {}",
            bias.len()
        ));
    }
    match bias.iter().find(|(_, bias)| !bias.is_finite()) {
        Some((id, _)) => Err(format!("logit_bias of token {id} must be finite")),
        None => Ok(()),
    }
}

fn alternatives(name: &str, count: u8) -> Result<(), String> {
    if usize::from(count) <= MAX_TOP_LOGPROBS {
        return Ok(());
    }
    Err(format!("{name} must be between 0 and {MAX_TOP_LOGPROBS}, not {count}"))
}

fn inside(name: &str, value: f32, range: std::ops::RangeInclusive<f32>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{name} must be between {} and {}, not {value}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(change: impl FnOnce(&mut SamplingParams)) -> String {
        let mut params = SamplingParams::default();
        change(&mut params);
        validate(&params).expect_err("must be refused")
    }

    #[test]
    fn defaults_and_edges_pass() {
        let accepted = |change: fn(&mut SamplingParams)| {
            let mut params = SamplingParams::default();
            change(&mut params);
            validate(&params)
        };
        assert_eq!(accepted(|_| ()), Ok(()));
        assert_eq!(accepted(|p| p.temperature = 0.0), Ok(()));
        assert_eq!(accepted(|p| p.top_p = f32::MIN_POSITIVE), Ok(()));
        assert_eq!(accepted(|p| p.min_p = 1.0), Ok(()));
        assert_eq!(accepted(|p| p.presence_penalty = -2.0), Ok(()));
        assert_eq!(accepted(|p| p.top_logprobs = 20), Ok(()));
    }

    #[test]
    fn messages_name_parameter_and_range() {
        assert_eq!(
            message(|p| p.temperature = -0.1),
            "temperature must be between 0 and 100, not -0.1"
        );
        assert_eq!(
            message(|p| p.temperature = f32::INFINITY),
            "temperature must be between 0 and 100, not inf"
        );
        assert_eq!(message(|p| p.top_p = 0.0), "top_p must be above 0 and at most 1, not 0");
        assert_eq!(message(|p| p.top_p = f32::NAN), "top_p must be above 0 and at most 1, not NaN");
        assert_eq!(message(|p| p.min_p = 1.5), "min_p must be between 0 and 1, not 1.5");
        assert_eq!(
            message(|p| p.repetition_penalty = 0.0),
            "repetition_penalty must be between 0.01 and 100, not 0"
        );
        assert_eq!(
            message(|p| p.presence_penalty = 2.5),
            "presence_penalty must be between -2 and 2, not 2.5"
        );
        assert_eq!(
            message(|p| p.frequency_penalty = f32::NAN),
            "frequency_penalty must be between -2 and 2, not NaN"
        );
        assert_eq!(
            message(|p| p.logit_bias = vec![(7, f32::NAN)]),
            "logit_bias of token 7 must be finite"
        );
        let many = message(|p| p.logit_bias = vec![(7, 0.0); 1025]);
        assert_eq!(many, "logit_bias must have at most 1024 entries, not 1025");
        assert_eq!(
            message(|p| p.top_logprobs = 21),
            "top_logprobs must be between 0 and 20, not 21"
        );
        assert_eq!(
            message(|p| p.prompt_logprobs = Some(21)),
            "prompt_logprobs must be between 0 and 20, not 21"
        );
    }
}
