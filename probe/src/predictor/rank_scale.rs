//! Scores of a ranking head as output lengths.

use crate::bins::MAX_TOKENS;

/// Fewest and most points of a scale.
pub(super) const POINTS: std::ops::RangeInclusive<usize> = 2..=64;

/// A strictly increasing map of scores to output tokens: a ranking head orders requests, and the
/// policies of this runtime rank by tokens. The order of the scores is kept.
///
/// Linear between points; above the last point the last slope goes on, below the first one the
/// length decays towards 0.
#[derive(Clone, Debug, PartialEq)]
pub struct RankScale {
    scores: Vec<f32>,
    lengths: Vec<f32>,
}

impl RankScale {
    /// The map through the points (score, tokens). The error says what is wrong unless there are 2
    /// to 64 points that increase in both, with finite scores and lengths from 0 to 2^24.
    pub fn new(scores: Vec<f32>, lengths: Vec<f32>) -> Result<RankScale, String> {
        let (first, second) = (scores.len(), lengths.len());
        if first != second || !POINTS.contains(&first) {
            return Err(format!("{first} scores and {second} lengths, not 2 to 64 of each"));
        }
        let increases = |values: &[f32]| values.windows(2).all(|pair| pair[0] < pair[1]);
        let is_length = |tokens: &f32| *tokens > 0.0 && *tokens <= MAX_TOKENS as f32;
        if !increases(&scores) || !increases(&lengths) {
            return Err("points that do not increase".into());
        }
        if !scores.iter().all(|score| score.is_finite()) || !lengths.iter().all(is_length) {
            return Err(format!("a score that is not finite or a length outside 0..={MAX_TOKENS}"));
        }
        Ok(RankScale { scores, lengths })
    }

    /// The scores of the points.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }

    /// The lengths of the points, tokens.
    pub fn lengths(&self) -> &[f32] {
        &self.lengths
    }

    /// The output tokens of `score`: finite, unless the score is not a number.
    pub fn tokens(&self, score: f64) -> f32 {
        let point = |at: usize| (f64::from(self.scores[at]), f64::from(self.lengths[at]));
        let above = self.scores.partition_point(|&of| f64::from(of) <= score);
        let left = above.saturating_sub(1).min(self.scores.len() - 2);
        let ((x0, y0), (x1, y1)) = (point(left), point(left + 1));
        let slope = (y1 - y0) / (x1 - x0);
        let tokens = match score < x0 {
            true => y0 * ((score - x0) * slope / y0).exp(),
            false => y0 + (score - x0) * slope,
        };
        tokens.clamp(0.0, f64::from(MAX_TOKENS)) as f32
    }
}
