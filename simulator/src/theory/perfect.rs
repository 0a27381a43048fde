//! Perfect predictions, r = x, of exponential sizes with mean 1: closed forms.

/// Integral of x^n f(x) over x > r, for n up to 2.
pub(super) fn tail(n: u32, r: f64) -> f64 {
    let polynomial = match n {
        0 => 1.0,
        1 => 1.0 + r,
        _ => 2.0 + r * (2.0 + r),
    };
    polynomial * (-r).exp()
}

/// E[(S - a_I)^2; R > r] with a_I = min(R - r, c R): the served part of size t is
/// max(r, (1 - c) t), and the second term begins at t = r / (1 - c).
pub(super) fn recycled(r: f64, c: f64) -> f64 {
    let rest = 1.0 - c;
    r * r * (-r).exp() + 2.0 * rest * (r + rest) * jump(r, c)
}

/// The integral in its place in the printed lemma: x - (t - r) = r, over t > r + c r.
pub(super) fn recycled_as_printed(r: f64, c: f64) -> f64 {
    r * r * (-(1.0 + c) * r).exp()
}

/// Moments n = 0 and 1 of the age at which a preemptable job has s left, as densities over s: the
/// age is below c s / (1 - c), the size is s plus the age.
pub(super) fn exposed(n: u32, s: f64, c: f64) -> f64 {
    match n {
        0 => (-s).exp() - jump(s, c),
        _ if c < 1.0 => (-s).exp() - (1.0 + c * s / (1.0 - c)) * jump(s, c),
        _ => (-s).exp(),
    }
}

/// exp(-s / (1 - c)), and its limit at c = 1.
fn jump(s: f64, c: f64) -> f64 {
    match c < 1.0 {
        true => (-s / (1.0 - c)).exp(),
        false => 0.0,
    }
}
