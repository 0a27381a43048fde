//! Non-deterministic random numbers for seeds and ids.

use std::hash::{BuildHasher, RandomState};

/// A random number.
pub fn u64() -> u64 {
    // The standard library keys every `RandomState` from the system's randomness: different at each
    // call, without another crate.
    RandomState::new().hash_one(0)
}

/// A random id of 32 hexadecimal digits.
pub fn id() -> String {
    format!("{:016x}{:016x}", u64(), u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let (a, b) = (id(), id());
        assert_eq!((a.len(), b.len()), (32, 32));
        assert_ne!(a, b);
    }
}
