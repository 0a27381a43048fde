//! Proof of the ceilings: they do the work that they are timed for.
