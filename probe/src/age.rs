//! Classes of age: output tokens so far. The first tokens of an answer say less than later ones, so
//! calibration and evidence differ between them.

/// Number of classes.
pub const AGES: usize = 5;

/// Names of the classes, in reports.
pub const AGE_NAMES: [&str; AGES] = ["prompt", "1-4", "5-16", "17-64", "later"];

/// Class of a request that has generated so many tokens: 0 for the prompt.
pub fn age_class(generated: u32) -> usize {
    match generated {
        0 => 0,
        1..=4 => 1,
        5..=16 => 2,
        17..=64 => 3,
        _ => 4,
    }
}
