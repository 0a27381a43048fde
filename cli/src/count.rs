//! Parsers of counts.

/// Parses a number from 1 to `MAX`.
pub fn count<const MAX: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX).contains(&n) => Ok(n),
        _ => Err(format!("expected a whole number from 1 to {MAX}")),
    }
}

/// A number of steps from `MIN` to the scheduler's bound.
pub(crate) fn count_u32<const MIN: u32>(text: &str) -> Result<u32, String> {
    let max = u32::MAX / 2;
    match text.parse() {
        Ok(steps) if (MIN..=max).contains(&steps) => Ok(steps),
        _ => Err(format!("expected a whole number from {MIN} to {max}")),
    }
}
