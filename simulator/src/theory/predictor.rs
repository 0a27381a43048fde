//! The joint distribution of a job's size and its predicted size.

use std::fmt;
use std::str::FromStr;

use super::quadrature::{integrate, integrate_to_infinity};
use super::{exponential, perfect};
use trail_platform::rng::Rng;

/// Distribution of the predicted size r of a job of size x. Sizes are exponential with mean 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictor {
    /// r is exponential with mean x.
    Exponential,
    /// r = x.
    Perfect,
}

impl Predictor {
    /// All predictors.
    pub const ALL: [Predictor; 2] = [Predictor::Exponential, Predictor::Perfect];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Predictor::Exponential => "exponential",
            Predictor::Perfect => "perfect",
        }
    }

    /// Draws a size and its prediction.
    pub fn draw(self, rng: &mut Rng) -> (f64, f64) {
        let size = rng.exponential();
        match self {
            Predictor::Exponential => (size, size * rng.exponential()),
            Predictor::Perfect => (size, size),
        }
    }

    /// Density of the prediction at `r`.
    pub fn density(self, r: f64) -> f64 {
        match self {
            Predictor::Exponential => exponential::density(r),
            Predictor::Perfect => (-r).exp(),
        }
    }

    /// E\[S^n; R > r\] for n = 0, 1, 2.
    pub fn tail(self, n: u32, r: f64) -> f64 {
        match self {
            Predictor::Exponential => exponential::tail(n, r),
            Predictor::Perfect => perfect::tail(n, r),
        }
    }

    /// E\[S | R = r\] times the density of `r`.
    pub fn work(self, r: f64) -> f64 {
        match self {
            // The integral of exp(-x - r / x).
            Predictor::Exponential => exponential::tail(0, r),
            Predictor::Perfect => r * (-r).exp(),
        }
    }

    /// Joint density of S > a and R = r.
    pub fn survival(self, a: f64, r: f64) -> f64 {
        match self {
            Predictor::Exponential => exponential::survival(a, r),
            Predictor::Perfect if a < r => (-r).exp(),
            Predictor::Perfect => 0.0,
        }
    }

    /// Second moment of the work with which jobs of a larger prediction than `r` are recycled:
    /// E\[(S - a_I)^2; R > r, S > a_I\], a_I = min(R - r, c R).
    pub fn recycled(self, r: f64, c: f64) -> f64 {
        match self {
            Predictor::Exponential => exponential::recycled(r, c),
            Predictor::Perfect => perfect::recycled(r, c),
        }
    }

    /// The integral in the place of [`Predictor::recycled`] in the printed lemma.
    pub fn recycled_as_printed(self, r: f64, c: f64) -> f64 {
        match self {
            Predictor::Exponential => exponential::recycled_as_printed(r, c),
            Predictor::Perfect => perfect::recycled_as_printed(r, c),
        }
    }

    /// E\[A^n; preemptable\] for n = 0, 1, as a density over `s`: A = R - s is the age at which the
    /// job has `s` of its prediction left; it is reached (A < S) and preemptable (A < c R).
    pub fn exposed(self, n: u32, s: f64, c: f64) -> f64 {
        match self {
            _ if c == 0.0 => 0.0,
            Predictor::Exponential => exponential::exposed(n, s, c),
            Predictor::Perfect => perfect::exposed(n, s, c),
        }
    }

    /// Integral of `f` over all predictions.
    pub fn integrate(self, f: impl Fn(f64) -> f64) -> f64 {
        match self {
            // Densities fall like exp(-u) in u = 2 sqrt r.
            Predictor::Exponential => integrate_to_infinity(|u| f(u * u / 4.0) * u / 2.0),
            Predictor::Perfect => integrate_to_infinity(f),
        }
    }

    /// Integral of `f` over predictions from `from` to `to`.
    pub fn integrate_between(self, from: f64, to: f64, f: impl Fn(f64) -> f64) -> f64 {
        integrate(f, from, to)
    }
}

impl fmt::Display for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Predictor {
    type Err = String;

    fn from_str(name: &str) -> Result<Predictor, String> {
        let found = Predictor::ALL.into_iter().find(|predictor| predictor.name() == name);
        found.ok_or_else(|| "the predictors are exponential and perfect".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: [(f64, f64); 6] =
        [(0.02, 0.3), (0.5, 0.05), (0.5, 0.5), (1.5, 0.8), (4.0, 0.5), (2.0, 0.999)];

    fn assert_close(got: f64, want: f64, of: &str) {
        assert!((got / want - 1.0).abs() < 1e-8, "{of}: {got}, not {want}");
    }

    /// Integral over sizes above `from` of `f` times the joint density with prediction `y`.
    fn over_sizes(y: f64, from: f64, f: impl Fn(f64) -> f64) -> f64 {
        integrate(|x| f(x) * (-x - y / x).exp() / x, from, from + 100.0)
    }

    /// Integral over predictions above `from`, with a kink at `kink`.
    fn over_predictions(from: f64, kink: f64, f: impl Fn(f64) -> f64) -> f64 {
        let kink = kink.clamp(from, 1000.0);
        integrate(&f, from, kink) + integrate(&f, kink, 2000.0)
    }

    #[test]
    fn bessel_functions_are_the_integrals_over_sizes() {
        let predictor = Predictor::Exponential;
        for (r, _) in POINTS {
            assert_close(predictor.density(r), over_sizes(r, 0.0, |_| 1.0), "density");
            assert_close(predictor.work(r), over_sizes(r, 0.0, |x| x), "work");
            for n in 0..3 {
                let power = |x: f64| x.powi(n as i32);
                let tail = over_predictions(r, r, |y| over_sizes(y, 0.0, power));
                assert_close(predictor.tail(n, r), tail, "tail");
            }
        }
    }

    #[test]
    fn recycled_work_is_its_definition() {
        for (r, c) in POINTS {
            let kink = r / (1.0 - c);
            let begin = |t: f64| (t - r).min(c * t);
            let exponential =
                over_predictions(r, kink, |t| over_sizes(t, begin(t), |x| (x - begin(t)).powi(2)));
            assert_close(Predictor::Exponential.recycled(r, c), exponential, "exponential");
            let perfect = over_predictions(r, kink, |t| (t - begin(t)).powi(2) * (-t).exp());
            assert_close(Predictor::Perfect.recycled(r, c), perfect, "perfect");
            let begin = |t: f64| t - r;
            let from = r + c * r;
            let exponential = over_predictions(from, from, |t| {
                over_sizes(t, begin(t), |x| (x - begin(t)).powi(2))
            });
            let printed = Predictor::Exponential.recycled_as_printed(r, c);
            assert_close(printed, exponential, "exponential, as printed");
            let perfect = over_predictions(from, from, |t| r * r * (-t).exp());
            assert_close(Predictor::Perfect.recycled_as_printed(r, c), perfect, "perfect, printed");
        }
    }

    #[test]
    fn exposure_is_its_definition() {
        for predictor in Predictor::ALL {
            for (s, c) in POINTS {
                for n in 0..2 {
                    let end = (c * s / (1.0 - c)).min(1000.0);
                    let term = |a: f64| a.powi(n as i32) * predictor.survival(a, s + a);
                    let exposed = predictor.exposed(n, s, c);
                    assert_close(exposed, integrate(term, 0.0, end), "exposed");
                }
            }
        }
    }
}
