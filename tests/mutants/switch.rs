//! Run-time switch of the planted bugs: `TRAIL_MUTANT=N` plants bug N, for the whole process.
//!
//! Copied into `trail-platform` of the scratch tree; no crate of the repository contains it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Value of [`ACTIVE`] before the variable is read.
const UNREAD: u32 = u32::MAX;

static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);

/// True if bug `number` is planted.
#[inline]
pub fn is_on(number: u32) -> bool {
    active() == number
}

/// The PTX `text` of module `name`; that of the file `TRAIL_MUTANT_PTX` if it has this name.
pub fn edit(name: &str, text: &str) -> String {
    let edited = std::env::var_os("TRAIL_MUTANT_PTX").map(std::path::PathBuf::from);
    let edited = edited.filter(|path| path.file_stem().is_some_and(|stem| stem == name));
    let edited = edited.and_then(|path| std::fs::read_to_string(path).ok());
    edited.unwrap_or_else(|| text.to_owned())
}

#[inline]
fn active() -> u32 {
    match ACTIVE.load(Ordering::Relaxed) {
        UNREAD => read(),
        number => number,
    }
}

#[cold]
fn read() -> u32 {
    let number = std::env::var("TRAIL_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    ACTIVE.store(number, Ordering::Relaxed);
    number
}
