//! Kendall's tau-b, the rank correlation by which Learning to Rank measures predictors.

/// Kendall's tau-b of the pairs (x, y): (Nc - Nd) / sqrt((N0 - N1) (N0 - N2)); 0 where all x or all
/// y are equal. In O(n log n), after Knight 1966.
pub fn kendall_tau_b(pairs: &[(f64, f64)]) -> f64 {
    let mut sorted = pairs.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let total = pairs_of(sorted.len());
    let ties_x: f64 = sorted.chunk_by(|a, b| a.0 == b.0).map(|run| pairs_of(run.len())).sum();
    let ties_both: f64 = sorted.chunk_by(|a, b| a == b).map(|run| pairs_of(run.len())).sum();
    let mut ys: Vec<f64> = sorted.iter().map(|pair| pair.1).collect();
    let discordant = inversions(&mut ys) as f64;
    let ties_y: f64 = ys.chunk_by(|a, b| a == b).map(|run| pairs_of(run.len())).sum();
    let concordant = total - ties_x - ties_y + ties_both - discordant;
    let norm = ((total - ties_x) * (total - ties_y)).sqrt();
    if norm > 0.0 { (concordant - discordant) / norm } else { 0.0 }
}

fn pairs_of(count: usize) -> f64 {
    count as f64 * (count as f64 - 1.0) / 2.0
}

/// Sorts `values`. Returns the number of pairs that were out of order.
fn inversions(values: &mut [f64]) -> u64 {
    let mut other = values.to_vec();
    let (mut count, mut width) = (0, 1);
    while width < values.len() {
        for (from, to) in values.chunks(2 * width).zip(other.chunks_mut(2 * width)) {
            count += merge(from, width.min(from.len()), to);
        }
        values.copy_from_slice(&other);
        width *= 2;
    }
    count
}

/// Merges the sorted halves of `from`, the first of `middle` values, to `to`. Returns the number of
/// pairs out of order.
fn merge(from: &[f64], middle: usize, to: &mut [f64]) -> u64 {
    let (mut left, mut right, mut count) = (0, middle, 0);
    for value in to {
        let take_left = right == from.len() || left < middle && from[left] <= from[right];
        let at = if take_left { &mut left } else { &mut right };
        *value = from[*at];
        *at += 1;
        count += if take_left { 0 } else { (middle - left) as u64 };
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The definition: all pairs.
    fn plain(pairs: &[(f64, f64)]) -> f64 {
        let (mut sum, mut x, mut y) = (0.0, 0.0, 0.0);
        for (i, a) in pairs.iter().enumerate() {
            for b in &pairs[..i] {
                let signs =
                    [a.0 - b.0, a.1 - b.1].map(|d: f64| if d == 0.0 { 0.0 } else { d.signum() });
                (sum, x, y) = (sum + signs[0] * signs[1], x + signs[0].abs(), y + signs[1].abs());
            }
        }
        if x * y > 0.0 { sum / f64::sqrt(x * y) } else { 0.0 }
    }

    #[test]
    fn agrees_with_all_pairs() {
        let mut rng = Rng::new(2);
        for count in [0, 1, 2, 3, 7, 40, 101] {
            for range in [2, 5, 1000] {
                let mut draw = || rng.below(range) as f64;
                let pairs: Vec<(f64, f64)> = (0..count).map(|_| (draw(), draw())).collect();
                assert!((kendall_tau_b(&pairs) - plain(&pairs)).abs() < 1e-12, "{pairs:?}");
            }
        }
    }
}
