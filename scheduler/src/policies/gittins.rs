//! The Gittins index of a request's remaining length.

use super::trail::{Trail, TrailPolicy, Variant, remaining};
use crate::{Policy, RequestState};

/// Ranks by the Gittins index of the posterior instead of its mean; window and options as TRAIL's.
///
/// The rank of a request is the least, over all services d, of E[min(X, d)] / P(X <= d), where X is
/// its remaining length: the expected service per completion if it is served up to d. The posterior
/// has the three points that a [`crate::Prediction`] carries: its quantiles, with the weights of
/// Swanson's rule (0.3, 0.4, 0.3). Without quantiles the rank is the expected remaining length.
///
/// Source: Gittins 1979; Scully and Harchol-Balter 2018 (SOAP) for the rank form. Beyond the papers
/// compared here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gittins {
    /// TRAIL's parameters.
    pub trail: Trail,
}

impl Gittins {
    /// The policy, for [`crate::Scheduler::new`].
    pub fn policy(self) -> impl Policy + use<> {
        TrailPolicy::bounded("gittins", self.trail, Variant::Gittins)
    }
}

/// Weights of the quantiles of 10, 50 and 90 % (Swanson's rule).
const WEIGHTS: [f32; 3] = [0.3, 0.4, 0.3];

/// The Gittins rank, output tokens.
pub(super) fn rank(request: &RequestState) -> f32 {
    let mean = remaining(request);
    let Some(prediction) = request.prediction.filter(|prediction| prediction.p90 > 0.0) else {
        return mean;
    };
    // Tokens generated since the prediction; quantiles count down like the mean.
    let since = (prediction.remaining - mean).max(0.0);
    let quantiles = [prediction.p10, prediction.p50, prediction.p90];
    let points = quantiles.map(|tokens| (tokens - since).max(1.0));
    let (mut served, mut done, mut best) = (0.0, 0.0, f32::INFINITY);
    for (weight, tokens) in WEIGHTS.into_iter().zip(points) {
        served += weight * tokens;
        done += weight;
        best = best.min((served + (1.0 - done).max(0.0) * tokens) / done);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prediction;
    use crate::policies::request;

    fn predicted(p10: f32, p50: f32, p90: f32) -> RequestState {
        let mut request = request(0, None);
        let remaining = 0.3 * p10 + 0.4 * p50 + 0.3 * p90;
        let prediction = Prediction { remaining, p10, p50, p90, ..Prediction::default() };
        assert!(request.predict(&prediction, 1));
        request
    }

    #[test]
    fn a_sure_length_is_its_own_rank() {
        assert!((rank(&predicted(50.0, 50.0, 50.0)) - 50.0).abs() < 1e-4);
        assert_eq!(rank(&request(0, Some(70.0))), 70.0);
    }

    #[test]
    fn a_chance_of_a_short_answer_ranks_before_the_mean() {
        // Up to 10 tokens: 10 / 0.3. Up to 100: (0.3 10 + 0.7 100) / 0.7. All: 183 / 1.
        let want = 10.0 / 0.3;
        assert!((rank(&predicted(10.0, 100.0, 500.0)) - want).abs() < 1e-3);
    }

    #[test]
    fn quantiles_count_down_with_the_tokens() {
        let mut request = predicted(40.0, 50.0, 60.0);
        let before = rank(&request);
        (0..10).for_each(|step| request.advance(step, 1, true));
        assert!((before - rank(&request) - 10.0).abs() < 1e-3);
    }
}
