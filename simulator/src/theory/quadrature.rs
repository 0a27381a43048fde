//! Quadrature by double-exponential substitution (Takahasi and Mori 1974).
//!
//! The trapezoid rule in t, after a substitution that makes the integrand fall double-exponentially
//! at both ends. It converges exponentially for integrands that are analytic inside the interval,
//! also with an algebraic or logarithmic singularity at an end, or features close to the left one.
//! An integrand with a kink is split there by the caller.

/// Relative change between two levels at which refinement ends. The error of the finer level is
/// about its square.
const TOLERANCE: f64 = 1e-7;

/// Finest step: 2^-LEVELS.
const LEVELS: u32 = 8;

/// Integral of `f` over the finite interval [a, b]; 0 if it is empty.
///
/// x = a + (b - a) q with q = 1 / (1 + exp(-pi sinh t)), the tanh-sinh rule. Distances from `a`
/// keep their relative precision.
pub(super) fn integrate(f: impl Fn(f64) -> f64, a: f64, b: f64) -> f64 {
    if a >= b {
        return 0.0;
    }
    let width = b - a;
    let term = |t: f64| {
        let power = (-std::f64::consts::PI * t.sinh()).exp();
        let q = 1.0 / (1.0 + power);
        let slope = std::f64::consts::PI * t.cosh() * power * q * q;
        match slope > 0.0 {
            true => f(a + width * q) * width * slope,
            false => 0.0,
        }
    };
    // exp(-pi sinh 3.75) = 1e-29.
    refine(term, -3.75, 3.75)
}

/// Integral of `f` over [0, inf), for an `f` that falls at least like exp(-x) times a power.
///
/// x = exp(t - exp(-t)). `f` is evaluated between 1e-19 and 730.
pub(super) fn integrate_to_infinity(f: impl Fn(f64) -> f64) -> f64 {
    let term = |t: f64| {
        let inverse = (-t).exp();
        let x = (t - inverse).exp();
        f(x) * x * (1.0 + inverse)
    };
    refine(term, -3.75, 6.625)
}

/// Trapezoid sums of `term` over [first, last], multiples of 1/8, with halved steps until two agree
/// or differ by rounding alone: by as much as the two before.
fn refine(term: impl Fn(f64) -> f64, first: f64, last: f64) -> f64 {
    let mut step = 0.125;
    let points = |step: f64| ((last - first) / step).round() as usize;
    let mut sum: f64 = (0..=points(step)).map(|i| term(first + step * i as f64)).sum();
    let mut change = f64::INFINITY;
    for _ in 3..LEVELS {
        let before = (sum * step, change);
        let middles = (0..points(step)).map(|i| term(first + step * (i as f64 + 0.5)));
        sum += middles.sum::<f64>();
        step /= 2.0;
        change = (sum * step - before.0).abs();
        if change <= TOLERANCE * (sum * step).abs() || 2.0 * change > before.1 {
            break;
        }
    }
    sum * step
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got / want - 1.0).abs() < 1e-12, "{got}, not {want}");
    }

    #[test]
    fn finite_intervals() {
        close(integrate(|x| x * x, 1.0, 4.0), 21.0);
        close(integrate(f64::sqrt, 0.0, 1.0), 2.0 / 3.0);
        close(integrate(|x| -x.ln(), 0.0, 1.0), 1.0);
        // A feature of width 1e-9 at the left end.
        close(integrate(|x| (-1e9 * x).exp(), 0.0, 1.0), 1e-9);
        assert_eq!(integrate(|_| 1.0, 2.0, 1.0), 0.0);
    }

    #[test]
    fn the_half_line() {
        close(integrate_to_infinity(|x| (-x).exp()), 1.0);
        close(integrate_to_infinity(|x| x.powi(3) * (-x).exp()), 6.0);
        // Euler's constant.
        close(integrate_to_infinity(|x| -x.ln() * (-x).exp()), 0.577_215_664_901_532_9);
    }
}
