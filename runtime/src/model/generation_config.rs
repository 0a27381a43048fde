//! Sampling defaults of a model: `generation_config.json`.

use std::fmt;
use std::path::Path;

use super::error::LoadError;
use super::fields::Fields;
use super::files;

/// The sampling parameters that a model's publisher recommends; `None`: no word of it. vLLM reads
/// the same keys, and `max_new_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Sampling temperature, at least 0.
    pub temperature: Option<f32>,
    /// Number of most likely tokens, 0 for all.
    pub top_k: Option<u32>,
    /// Probability of the nucleus, above 0 and at most 1.
    pub top_p: Option<f32>,
    /// Least share of the most likely token's probability, from 0 to 1.
    pub min_p: Option<f32>,
    /// Repetition penalty, above 0.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `folder`; empty where there is no such file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a value is out of its range.
    pub fn load(folder: &Path) -> Result<GenerationConfig, LoadError> {
        let file = folder.join("generation_config.json");
        let Some(bytes) = files::read_json_if_present(&file)? else {
            return Ok(GenerationConfig::default());
        };
        let fields = Fields::parse(&file, &bytes)?;
        let number = |key: &str, expected: &str, is_valid: fn(f32) -> bool| {
            let Some(value) = fields.get(key) else { return Ok(None) };
            let number = value.as_f64().map(|number| number as f32);
            let valid = number.filter(|&number| number.is_finite() && is_valid(number));
            let remedy = "correct it, or give --generation-config none";
            valid.map(Some).ok_or_else(|| fields.refuse(key, expected, remedy))
        };
        let top_k = number("top_k", "a whole number of at least -1", |k| {
            (-1.0..=1e9).contains(&k) && k.fract() == 0.0
        })?;
        Ok(GenerationConfig {
            temperature: number("temperature", "a number of at least 0", |t| t >= 0.0)?,
            top_k: top_k.map(|k| k.max(0.0) as u32),
            top_p: number("top_p", "a number above 0, at most 1", |p| p > 0.0 && p <= 1.0)?,
            min_p: number("min_p", "a number from 0 to 1", |p| (0.0..=1.0).contains(&p))?,
            repetition_penalty: number("repetition_penalty", "a number above 0", |x| x > 0.0)?,
        })
    }
}

/// The parameters, each with its value, separated by commas.
impl fmt::Display for GenerationConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            ("temperature", self.temperature.map(|x| x.to_string())),
            ("top_k", self.top_k.map(|x| x.to_string())),
            ("top_p", self.top_p.map(|x| x.to_string())),
            ("min_p", self.min_p.map(|x| x.to_string())),
            ("repetition_penalty", self.repetition_penalty.map(|x| x.to_string())),
        ];
        let given = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
        f.write_str(
            &given.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "),
        )
    }
}
