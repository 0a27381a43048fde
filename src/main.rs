//! The `trail-rt` command line.
fn main() {}
