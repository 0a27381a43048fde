//! The cell through which a request's estimate reaches the scheduler: a sequence lock of atomics.
//!
//! ```text
//! writer   sequence = odd;  fence(release);  words...;          sequence = even (release)
//! reader   before = sequence (acquire);      words...;  fence(acquire);  after = sequence
//!          valid iff before is even and before == after
//! ```
//!
//! If a reader sees any word of a write, the two fences make it see that write's odd sequence, or a
//! later one, in `after`. The words are atomics themselves, so a read that loses the race is
//! discarded, but is not a data race (Boehm, "Can seqlocks get along with programming
//! language memory models?", MSPC 2012). The loom test explores the interleavings.
//!
//! One writer per cell, the probe; any number of readers; no reader waits.

use crate::sync::{AtomicU64, Ordering, fence};
use crate::tracker::Estimate;

/// Attempts of a reader before it gives up and the scheduler plans with the older estimate.
/// One under loom, whose work grows exponentially with the loads; attempts are independent.
const ATTEMPTS: usize = if cfg!(loom) { 1 } else { 4 };

/// Words of the payload: step; generation and generated; remaining and p10; p50 and p90.
const WORDS: usize = 4;

/// The latest estimate of one request index, on its own cache line.
#[derive(Debug)]
#[repr(align(64))]
pub struct Cell {
    /// Twice the number of finished writes, plus one during a write. 0: nothing written yet.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Cell>() == 64);

/// An estimate as read from a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The engine step whose activations the estimate comes from.
    pub step: u64,
    /// The estimate. Its generation tells which request of the index it belongs to.
    pub estimate: Estimate,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell { sequence: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Cell {
    /// Publishes an estimate from `step`. For the cell's single writer: two concurrent writers
    /// could mix their estimates, without a data race, as every word is atomic.
    pub fn publish(&self, step: u64, estimate: &Estimate) {
        // Not a load and a store: loom forgets a reader's load once the writer loads the same word,
        // and then explores one interleaving only.
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        // Pairs with the reader's fence: a reader that sees a word stored below sees the odd
        // sequence above.
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(pack(step, estimate)) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// The latest estimate; None if there is none yet, or if a write interfered with every attempt.
    pub fn try_read(&self) -> Option<Reading> {
        (0..ATTEMPTS).find_map(|_| self.attempt())
    }

    fn attempt(&self) -> Option<Reading> {
        let before = self.sequence.load(Ordering::Acquire);
        if before == 0 || before % 2 == 1 {
            return None;
        }
        let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        // Pairs with the writer's fence; keeps the loads above from sinking below the check.
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after).then(|| unpack(words))
    }
}

fn pack(step: u64, estimate: &Estimate) -> [u64; WORDS] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let [p10, p50, p90] = estimate.quantiles.map(f32::to_bits);
    [
        step,
        pair(estimate.generation, estimate.generated),
        pair(estimate.remaining.to_bits(), p10),
        pair(p50, p90),
    ]
}

fn unpack(words: [u64; WORDS]) -> Reading {
    let low = |word: u64| word as u32;
    let high = |word: u64| (word >> 32) as u32;
    Reading {
        step: words[0],
        estimate: Estimate {
            generation: low(words[1]),
            generated: high(words[1]),
            remaining: f32::from_bits(low(words[2])),
            quantiles: [high(words[2]), low(words[3]), high(words[3])].map(f32::from_bits),
        },
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
