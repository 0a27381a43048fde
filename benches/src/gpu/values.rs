//! Parsers of numbers on the command line.

/// Parses a count of at least 1.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a number from 1 on".into())
}

/// Parses a finite number above 0.
pub fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| "expected a number above 0".into())
}

/// Parses a finite number of at least 0.
pub fn zero_or_more(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    number.ok_or_else(|| "expected 0 or a number above it".into())
}
