//! Cut of top-k and top-p by partial selection, without sorting the vocabulary.
//!
//! A token and its logit are packed into a [`Key`] such that the better token has the smaller key:
//! higher logit first, lower id among equal logits. So top-k and the nucleus are exact sets, also
//! with ties.

use super::softmax::{self, Above};
use super::widest::widest;

/// Number of tokens that are tested together; most groups contain no candidate.
const GROUP: usize = 32;

/// A token and its logit, ordered best first.
pub(super) type Key = u64;

/// Packs a token and its logit, which must not be NaN.
#[inline(always)]
fn key(id: u32, logit: f32) -> Key {
    // Adding zero turns -0.0 into 0.0. The bits of floats are ordered like integers once those of
    // negative numbers are flipped.
    let bits = (logit + 0.0).to_bits();
    let ascending = bits ^ ((bits as i32 >> 31) as u32 | 1 << 31);
    u64::from(!ascending) << 32 | u64::from(id)
}

/// Unpacks a key into token and logit.
pub(super) fn unpack(key: Key) -> (u32, f32) {
    let ascending = !((key >> 32) as u32);
    let bits = if ascending >> 31 == 1 { ascending ^ 1 << 31 } else { !ascending };
    (key as u32, f32::from_bits(bits))
}

widest! {
    /// Writes the keys of the `k` best tokens to `best`, unordered; tokens at minus infinity are
    /// skipped.
    ///
    /// One pass: `best` collects tokens that beat the k-th best so far, and is cut to k when it has
    /// doubled.
    fn select_best(logits: &[f32], k: usize, best: &mut Vec<Key>) -> () {
        best.clear();
        if k == 0 {
            return;
        }
        let full = 2 * k + GROUP;
        let mut bar = f32::NEG_INFINITY;
        for (group, logits) in logits.chunks(GROUP).enumerate() {
            if !any(logits, |logit| logit > bar) {
                continue;
            }
            // A later token that equals the bar has a higher id than all tokens at the bar, so it
            // ranks last.
            for (offset, &logit) in logits.iter().enumerate().filter(|(_, logit)| **logit > bar) {
                best.push(key((group * GROUP + offset) as u32, logit));
            }
            if best.len() >= full {
                bar = cut_to(k, best);
            }
        }
        if best.len() > k {
            cut_to(k, best);
        }
    }
}

/// Number of tokens below which a band is cheaper to partition than to narrow.
const FEW: usize = 2048;
/// Maximum number of narrowing steps: tokens in the remaining band are nearly equal, as 16 steps
/// divide 2^-126..1 into 2^16 bands.
const MAX_STEPS: usize = 16;

/// Returns the last token of the nucleus: the best tokens, in order, until their weights reach
/// `target`.
///
/// `negligible` must be so small that all weights up to it cannot sum to the total minus `target`;
/// the largest weight is 1. `None` if the target is not reached, which rounding can cause when it
/// is nearly the total: then all tokens are in the nucleus.
pub(super) fn nucleus_end(
    logits: &[f32],
    weights: &[f32],
    target: f64,
    negligible: f32,
    scratch: &mut Vec<Key>,
) -> Option<Key> {
    let (low, high) = narrow(weights, target, negligible);
    if low.mass < target {
        return None;
    }
    gather(logits, weights, low.weight, high.weight, scratch);
    let mass =
        |keys: &[Key]| keys.iter().map(|&key| f64::from(weights[key as u32 as usize])).sum::<f64>();
    // The end is in `rest`; the weights better than `rest` leave `missing` to the target.
    let (mut rest, mut missing) = (scratch.as_mut_slice(), target - high.mass);
    while rest.len() > 1 {
        let half = rest.len() / 2;
        rest.select_nth_unstable(half);
        let (better, worse) = rest.split_at_mut(half);
        let better_mass = mass(better);
        if better_mass >= missing {
            rest = better;
        } else {
            missing -= better_mass;
            rest = worse;
        }
    }
    rest.first().copied()
}

/// Bisects the scale of weights for the band that contains the end of the nucleus: the weights
/// above `low` reach the target, those above `high` do not.
fn narrow(weights: &[f32], target: f64, negligible: f32) -> (Above, Above) {
    let mut low = softmax::above(weights, negligible.max(f32::MIN_POSITIVE / 2.0));
    let mut high = Above { weight: 1.0, mass: 0.0, tokens: 0 };
    for _ in 0..MAX_STEPS {
        if low.tokens - high.tokens <= FEW {
            break;
        }
        let middle = softmax::above(weights, low.weight.sqrt() * high.weight.sqrt());
        if middle.mass >= target {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low, high)
}

widest! {
    /// Fills `keys` with the tokens whose weight is above `low` and at most `high`.
    fn gather(logits: &[f32], weights: &[f32], low: f32, high: f32, keys: &mut Vec<Key>) -> () {
        keys.clear();
        let groups = logits.chunks(GROUP).zip(weights.chunks(GROUP));
        for (group, (logits, weights)) in groups.enumerate() {
            let inside = |weight: f32| (weight > low) & (weight <= high);
            if !any(weights, inside) {
                continue;
            }
            for (offset, (&logit, &weight)) in logits.iter().zip(weights).enumerate() {
                if inside(weight) {
                    keys.push(key((group * GROUP + offset) as u32, logit));
                }
            }
        }
    }
}

/// Cuts `best`, which has more than `k` keys, to the `k` best; returns the worst remaining logit.
fn cut_to(k: usize, best: &mut Vec<Key>) -> f32 {
    let (_, &mut last, _) = best.select_nth_unstable(k - 1);
    best.truncate(k);
    unpack(last).1
}

/// Returns true if any number passes, without a branch per number.
#[inline(always)]
fn any(numbers: &[f32], passes: impl Fn(f32) -> bool) -> bool {
    let mut found = false;
    for &number in numbers {
        found |= passes(number);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_like_logit_then_id() {
        let logits =
            [f32::MAX, 2.0, 1.0, 1e-40, 0.0, -1e-40, -1.0, -2.0, f32::MIN, f32::NEG_INFINITY];
        for pair in logits.windows(2) {
            assert!(key(9, pair[0]) < key(1, pair[1]), "{pair:?}");
        }
        assert!(key(1, 5.0) < key(2, 5.0));
        assert!(key(1, -0.0) < key(2, 0.0));
        for logit in logits {
            assert_eq!(unpack(key(128_255, logit)), (128_255, logit));
        }
    }

    #[test]
    fn select_best_equals_a_sort() {
        for len in [1usize, 7, 256, 300, 4000] {
            // Few distinct values give many ties; in ascending or descending runs the bar moves
            // always or never.
            let shapes: [fn(usize) -> f32; 3] =
                [|i| ((i * 7919) % 13) as f32, |i| i as f32, |i| -(i as f32)];
            for logits in shapes.map(|shape| (0..len).map(shape).collect::<Vec<f32>>()) {
                let mut sorted: Vec<Key> =
                    logits.iter().enumerate().map(|(id, &x)| key(id as u32, x)).collect();
                sorted.sort_unstable();
                for k in [0, 1, 2, 50, 255, len - 1, len, len + 1] {
                    let mut best = Vec::new();
                    select_best(&logits, k, &mut best);
                    best.sort_unstable();
                    assert_eq!(best, sorted[..k.min(len)], "{k} of {len}");
                }
            }
        }
    }

    #[test]
    fn masked_tokens_are_never_among_the_best() {
        let mut best = Vec::new();
        select_best(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], 3, &mut best);
        assert_eq!(best, [key(1, 1.0)]);
    }

    /// Vocabularies far above [`FEW`], so that the band is narrowed; weights are powers of two, so
    /// that sums are exact.
    #[test]
    fn nucleus_end_equals_a_walk_down_the_order() {
        let shapes: [fn(usize) -> i32; 4] =
            [|_| 0, |i| (i * 7919 % 20) as i32, |i| (i / 1000) as i32, |i| i32::from(i != 77) * 9];
        for shape in shapes {
            let logits: Vec<f32> = (0..20_000).map(|i| -shape(i) as f32).collect();
            let weights: Vec<f32> = logits.iter().map(|logit| logit.exp2()).collect();
            let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let mut sorted: Vec<Key> =
                logits.iter().enumerate().map(|(id, &x)| key(id as u32, x)).collect();
            sorted.sort_unstable();
            for top_p in [1e-9, 0.1, 0.5, 0.9, 0.999] {
                let target = top_p * total;
                let mut reached = 0.0;
                let walked = sorted.iter().find(|&&key| {
                    reached += f64::from(weights[key as u32 as usize]);
                    reached >= target
                });
                let negligible = ((total - target) / 40_000.0) as f32;
                let end = nucleus_end(&logits, &weights, target, negligible, &mut Vec::new());
                assert_eq!(end.as_ref(), walked, "top_p {top_p}");
            }
        }
    }
}
