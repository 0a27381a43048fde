//! Means over recent values.

/// Means of about the last values of N kinds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent<const N: usize> {
    /// 0 before the first value.
    pub(super) mean: [f64; N],
    count: f64,
    memory: f64,
}

impl<const N: usize> Recent<N> {
    /// Means of about the last `memory` values.
    pub(super) fn over(memory: u32) -> Self {
        Recent { mean: [0.0; N], count: 0.0, memory: f64::from(memory) }
    }

    /// Takes in one value of each kind.
    pub(super) fn add(&mut self, values: [f64; N]) {
        self.count = (self.count + 1.0).min(self.memory);
        for (mean, value) in self.mean.iter_mut().zip(values) {
            *mean += (value - *mean) / self.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_forgets() {
        let mut recent = Recent::over(256);
        recent.add([2.0, 5.0]);
        recent.add([4.0, 5.0]);
        assert_eq!(recent.mean, [3.0, 5.0]);
        (0..10_000).for_each(|_| recent.add([1.0, 0.0]));
        (0..1_000).for_each(|_| recent.add([3.0, 0.0]));
        assert!((recent.mean[0] - 3.0).abs() < 0.05, "{recent:?}");
    }
}
