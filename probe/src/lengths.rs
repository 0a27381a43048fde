//! The grid of total output lengths that the token filter works on.

/// Lengths up to here have a state each.
const EXACT: u32 = 512;

/// States of each doubling beyond.
const PER_DOUBLING: u32 = 16;

/// Total lengths, ascending: every one up to 512 tokens, then 16 a doubling.
#[derive(Clone, Debug, PartialEq)]
pub struct Lengths {
    /// Longest length of each state, tokens; for the first 512 states their only one.
    last: Vec<u32>,
    /// Middle of each state, tokens.
    values: Vec<f32>,
}

impl Lengths {
    /// The grid up to `longest` tokens, which is at least 1.
    pub fn new(longest: u32) -> Lengths {
        let mut last: Vec<u32> = (1..=longest.clamp(1, EXACT)).collect();
        let mut step = 1;
        while *last.last().expect("a state") < longest {
            let doublings = f64::from(step) / f64::from(PER_DOUBLING);
            last.push(((f64::from(EXACT) * doublings.exp2()).round() as u32).min(longest));
            step += 1;
        }
        let first = std::iter::once(1).chain(last.iter().map(|last| last + 1));
        let values = first.zip(&last).map(|(first, &last)| 0.5 * (first as f32 + last as f32));
        Lengths { values: values.collect(), last }
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Never true: there is a state for 1 token.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Middle of each state, tokens `[len]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The first state with lengths of at least `tokens`; the number of states if there is none.
    pub fn at_least(&self, tokens: u32) -> usize {
        match tokens {
            0 | 1 => 0,
            2..=EXACT => (tokens as usize - 1).min(self.last.len()),
            _ => self.last.partition_point(|&last| last < tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_exact_first_and_then_relative() {
        let lengths = Lengths::new(2048);
        assert_eq!(lengths.len(), 512 + 32);
        assert_eq!(lengths.values()[..3], [1.0, 2.0, 3.0]);
        assert_eq!(lengths.last[527], 1024);
        assert_eq!(lengths.last.last(), Some(&2048));
        for tokens in 1..=2048 {
            let state = lengths.at_least(tokens);
            assert!(lengths.last[state] >= tokens);
            assert!(state == 0 || lengths.last[state - 1] < tokens);
        }
        assert_eq!((lengths.at_least(0), lengths.at_least(2049)), (0, 544));
    }

    #[test]
    fn a_short_grid_ends_at_its_bound() {
        let lengths = Lengths::new(3);
        assert_eq!((lengths.len(), lengths.at_least(3), lengths.at_least(4)), (3, 2, 3));
        assert_eq!((lengths.at_least(512), lengths.at_least(600)), (3, 3));
    }
}
