//! Numbers that nobody can foresee, for seeds and names.

use std::hash::{BuildHasher, RandomState};

/// A random number.
pub fn number() -> u64 {
    // The standard library keys each `RandomState` anew from the system's randomness: enough to be
    // different every time, and no further crate.
    RandomState::new().hash_one(0)
}

/// A random name of 32 hexadecimal digits.
pub fn name() -> String {
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let (a, b) = (name(), name());
        assert_eq!((a.len(), b.len()), (32, 32));
        assert_ne!(a, b);
    }
}
