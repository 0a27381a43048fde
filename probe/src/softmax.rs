//! Softmax over the bins, in place.

/// Turns logits into probabilities that sum to 1. The largest logit is subtracted first, so no
/// finite logit overflows. A logit that is not finite makes every probability NaN, which the
/// smoother rejects.
pub(crate) fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for logit in logits.iter_mut() {
        // NaN for an infinite largest logit: inf - inf.
        *logit = (*logit - largest).exp();
        sum += *logit;
    }
    for logit in logits {
        *logit /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_logits_do_not_overflow() {
        let mut p = [1e30, 1e30, -1e30];
        softmax(&mut p);
        assert_eq!(p, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn a_logit_that_is_not_finite_makes_all_nan() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut p = [0.0, bad, 1.0];
            softmax(&mut p);
            assert!(p.iter().all(|p| p.is_nan()), "{p:?}");
        }
    }
}
