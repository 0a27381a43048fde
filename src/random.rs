//! Non-deterministic random numbers for seeds and ids.

use std::hash::{BuildHasher, RandomState};

/// A random number.
pub fn number() -> u64 {
    // The standard library keys every `RandomState` from the system's randomness: different at each
    // call, without another crate.
    RandomState::new().hash_one(0)
}

/// A random id of 32 hexadecimal digits.
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
