//! The predicted length of one answer, and its points.

use crate::bins::Bins;

/// The predicted total output length of one answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Prediction {
    /// A distribution.
    Bins {
        /// The bins of the total length.
        bins: Box<Bins>,
        /// Their probabilities, `[bins]`.
        q: Vec<f32>,
    },
    /// One length, tokens.
    Tokens(f32),
}

impl Prediction {
    /// Expected output tokens: the mean of the distribution, as in the code released with TRAIL.
    pub fn mean(&self) -> f32 {
        match self {
            Prediction::Bins { bins, q } => bins.expected(q),
            Prediction::Tokens(tokens) => *tokens,
        }
    }

    /// Midpoint of the most probable bin, in tokens: r as TRAIL section 3.3 defines it.
    pub fn likeliest(&self) -> f32 {
        match self {
            Prediction::Bins { bins, q } => bins.midpoint(likeliest_bin(q)) as f32,
            Prediction::Tokens(tokens) => *tokens,
        }
    }

    /// True if the most probable bin is that of an answer of `tokens`; `None` without bins.
    pub fn is_likeliest(&self, tokens: u32) -> Option<bool> {
        match self {
            Prediction::Bins { bins, q } => Some(likeliest_bin(q) == bins.bin_of(tokens)),
            Prediction::Tokens(_) => None,
        }
    }

    /// The total output tokens whose countdown, clamped at 1, has the least expected error summed
    /// over the tokens of the answer.
    ///
    /// A long answer counts with more tokens than a short one, so that this point lies above the
    /// median. Taken over the bins' midpoints.
    pub fn countdown_optimal(&self) -> f32 {
        let (bins, q) = match self {
            Prediction::Bins { bins, q } => (bins, q),
            Prediction::Tokens(tokens) => return *tokens,
        };
        let midpoint = |bin| bins.midpoint(bin) as f32;
        let error = |predicted: f32| -> f32 {
            let of = |bin| q[bin] * countdown_error(predicted, midpoint(bin));
            (0..bins.count()).map(of).sum()
        };
        let points = (0..bins.count()).map(midpoint);
        points.min_by(|&a, &b| error(a).total_cmp(&error(b))).expect("at least one bin")
    }
}

/// Index of the most probable bin, the first of equal ones.
fn likeliest_bin(q: &[f32]) -> usize {
    (0..q.len()).fold(0, |best, i| if q[i] > q[best] { i } else { best })
}

/// Error of counting `predicted` tokens down over an answer of `length`, summed over its tokens: as
/// long as `predicted` lasts the difference, then what is left.
fn countdown_error(predicted: f32, length: f32) -> f32 {
    let rest = (length - predicted).max(0.0);
    (predicted - length).abs() * predicted.min(length) + 0.5 * rest * rest
}
