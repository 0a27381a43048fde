//! Options of the rank that a probe file names.

use std::ops::RangeInclusive;

use crate::bins::MAX_TOKENS;
use crate::error::Error;
use crate::file::Reader;

/// Largest [`RankOptions::express`].
const MAX_EXPRESS: f32 = 1e6;

/// Options of the rank under which a probe scheduled best on answers that it was not trained on,
/// metadata of the same names. `None` is the scheduler's default. They are advice: what a user
/// names goes before them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankOptions {
    /// Output tokens that a request runs, once in the batch, before another takes its place.
    pub min_run_tokens: Option<u32>,
    /// Share of the mean expected length below which requests go before overdue ones, 0 to 1e6.
    pub express: Option<f32>,
    /// Share that the first prediction, counted down, has in a rank, 0 to 1.
    pub initial_share: Option<f32>,
}

impl RankOptions {
    /// Names and values of the options that are set.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let options = [
            ("min_run_tokens", self.min_run_tokens.map(|tokens| tokens.to_string())),
            ("express", self.express.map(|share| share.to_string())),
            ("initial_share", self.initial_share.map(|share| share.to_string())),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    /// Takes the options of a file's metadata; an error names one that is out of range.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<RankOptions, Error> {
        let mut share = |key: &str, range: RangeInclusive<f32>| {
            let expected = format!("a number from {} to {}", range.start(), range.end());
            reader.optional(key, &expected, |text| {
                text.parse().ok().filter(|value| range.contains(value))
            })
        };
        let express = share("express", 0.0..=MAX_EXPRESS)?;
        let initial_share = share("initial_share", 0.0..=1.0)?;
        let expected = format!("an integer up to {MAX_TOKENS}");
        let min_run_tokens = reader.optional("min_run_tokens", &expected, |text| {
            text.parse().ok().filter(|&tokens| tokens <= MAX_TOKENS)
        })?;
        Ok(RankOptions { min_run_tokens, express, initial_share })
    }
}
