//! Exponential predictions with mean x of exponential sizes x with mean 1: the joint density is
//! g(x, y) = exp(-x - y / x) / x.
//!
//! Integrals over all sizes are Bessel functions of u = 2 sqrt(r). Those that depend on c have a
//! kink at x = c r / (1 - c), and are computed by quadrature on either side.

use super::bessel::k;
use super::quadrature::integrate;

/// Density of the prediction: 2 K_0(2 sqrt r).
pub(super) fn density(r: f64) -> f64 {
    2.0 * k(0, 2.0 * r.sqrt())
}

/// E[S^n; R > r] for n up to 2: the integral of x^n exp(-x - r / x) is
/// 2 r^((n+1)/2) K_{n+1}(2 sqrt r).
pub(super) fn tail(n: u32, r: f64) -> f64 {
    if r <= 0.0 {
        return f64::from(n.max(1));
    }
    let root = r.sqrt();
    2.0 * root.powi(n as i32 + 1) * k(n + 1, 2.0 * root)
}

/// Joint density of S > a and R = r.
pub(super) fn survival(a: f64, r: f64) -> f64 {
    let (min, max) = sizes(r);
    integrate(|x| (-x - r / x).exp() / x, min.max(a), max.max(a + 50.0))
}

/// E[(S - a_I)^2; R > r, S > a_I] with a_I = min(R - r, c R).
///
/// Given x, the inner integral over t is elementary. With p = r / x it is
/// (1 - 2/e) x^2 exp(-p) where x is below the kink: such a job is recycled by its falling rank or
/// not at all. Above it, jobs with t > r / (1 - c) are recycled at age c t.
pub(super) fn recycled(r: f64, c: f64) -> f64 {
    let falling = 1.0 - 2.0 * (-1.0f64).exp();
    let below = |x: f64| falling * x * x * (-x - r / x).exp();
    if c == 1.0 {
        return falling * tail(2, r);
    }
    // Where c is tiny exp(-1 / c) is 0, as is its product.
    let end = 2.0 * c * c * (-1.0 / c).exp();
    let above = |x: f64| {
        let jump = 2.0 * c * (1.0 - c + r / x) * (-r / ((1.0 - c) * x)).exp();
        x * x * (-x).exp() * ((-r / x).exp() - jump - end)
    };
    over_sizes(r, c, below, above)
}

/// The integral in its place in the printed lemma: (x - (t - r))^2 over t > r + c r.
pub(super) fn recycled_as_printed(r: f64, c: f64) -> f64 {
    // The integral of (1 - w)^2 exp(-w) from v to 1, with w = (t - r) / x.
    let part = |v: f64| (1.0 + v * v) * (-v).exp() - 2.0 * (-1.0f64).exp();
    let (min, max) = sizes(r);
    let term = |x: f64| x * x * (-x - r / x).exp() * part(c * r / x);
    integrate(term, min.max(c * r), max.max(c * r))
}

/// Moments n = 0 and 1 of the age at which a preemptable job has a predicted s left, as densities
/// over s: ages below min(x, c s / (1 - c)), where t = s + age has density exp(-t / x) / x.
pub(super) fn exposed(n: u32, s: f64, c: f64) -> f64 {
    let whole = 1.0 - f64::from(n + 1) * (-1.0f64).exp();
    if c == 1.0 {
        return whole * tail(n, s);
    }
    let kink = c * s / (1.0 - c);
    let at = |x: f64, part: f64| x.powi(n as i32) * (-x - s / x).exp() * part;
    let above = |x: f64| {
        let v = kink / x;
        // 1 - exp(-v) without cancellation for small v, less v exp(-v) for the first moment.
        at(x, -(-v).exp_m1() - f64::from(n) * v * (-v).exp())
    };
    over_sizes(s, c, |x| at(x, whole), above)
}

/// Sizes between which exp(-x - r / x) is above exp(-50) times its maximum.
fn sizes(r: f64) -> (f64, f64) {
    let half = r.sqrt() + 25.0;
    let max = half + (half * half - r).sqrt();
    (r / max, max)
}

/// Integral over x of `below` up to the kink c r / (1 - c), and of `above` from there, both of the
/// order of exp(-x - r / x).
fn over_sizes(r: f64, c: f64, below: impl Fn(f64) -> f64, above: impl Fn(f64) -> f64) -> f64 {
    let (min, max) = sizes(r);
    let kink = (c * r / (1.0 - c)).clamp(min, max);
    integrate(below, min, kink) + integrate(above, kink, max)
}
