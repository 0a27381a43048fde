//! One bit a byte: has anybody written it?

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::ZeroedWords;

/// Which bytes of an allocation were written. Blocks on several host threads mark and ask at once.
pub(crate) struct Written {
    /// All bytes are: the map need not be asked any more.
    all: AtomicBool,
    words: ZeroedWords,
    bytes: u64,
}

impl Written {
    /// Nothing written.
    pub(crate) fn none(bytes: u64) -> Written {
        let count = bytes.div_ceil(64) as usize;
        let words = ZeroedWords::new(count);
        assert_eq!(words.all().len(), count, "the host has no memory to mark {bytes} bytes");
        Written { all: AtomicBool::new(false), words, bytes }
    }

    /// All written, for memory whose history is unknown.
    pub(crate) fn all() -> Written {
        Written { all: AtomicBool::new(true), words: ZeroedWords::new(0), bytes: 0 }
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self.words.all()
    }

    /// Marks `offset..offset + length`.
    #[inline]
    pub(crate) fn set(&self, offset: u64, length: u64) {
        if self.all.load(Relaxed) {
            return;
        }
        if length >= self.bytes {
            self.all.store(true, Relaxed);
            return;
        }
        for_words(offset, length, |word, bits| {
            let word = &self.words()[word];
            if word.load(Relaxed) & bits != bits {
                word.fetch_or(bits, Relaxed);
            }
            true
        });
    }

    /// Are all of `offset..offset + length` written?
    #[inline]
    pub(crate) fn is(&self, offset: u64, length: u64) -> bool {
        self.all.load(Relaxed)
            || for_words(offset, length, |word, bits| {
                self.words()[word].load(Relaxed) & bits == bits
            })
    }

    /// First unwritten byte of a range.
    pub(crate) fn gap(&self, offset: u64, length: u64) -> Option<u64> {
        (offset..offset + length).find(|&at| !self.is(at, 1))
    }

    /// Forgets `offset..offset + length`.
    pub(crate) fn clear(&self, offset: u64, length: u64) {
        if self.all.load(Relaxed) {
            if self.words().is_empty() {
                return;
            }
            self.words().iter().for_each(|word| word.store(u64::MAX, Relaxed));
            self.all.store(false, Relaxed);
        }
        for_words(offset, length, |word, bits| {
            self.words()[word].fetch_and(!bits, Relaxed);
            true
        });
    }

    /// Takes over what `from` knows about a range.
    pub(crate) fn copy(&self, offset: u64, from: &Written, from_offset: u64, length: u64) {
        if from.is(from_offset, length) {
            return self.set(offset, length);
        }
        self.clear(offset, length);
        for at in (0..length).filter(|&at| from.is(from_offset + at, 1)) {
            self.set(offset + at, 1);
        }
    }
}

/// Calls `visit(word, bits)` for the words that cover a range, until it says no.
#[inline]
fn for_words(offset: u64, length: u64, mut visit: impl FnMut(usize, u64) -> bool) -> bool {
    let (mut at, end) = (offset, offset + length);
    while at < end {
        let bit = at % 64;
        let take = (64 - bit).min(end - at);
        let bits = (u64::MAX >> (64 - take)) << bit;
        if !visit((at / 64) as usize, bits) {
            return false;
        }
        at += take;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_across_words() {
        let written = Written::none(300);
        written.set(60, 80);
        assert!(written.is(60, 80) && !written.is(59, 2) && !written.is(139, 2));
        assert_eq!(written.gap(0, 300), Some(0));
        assert_eq!(written.gap(60, 100), Some(140));
        written.clear(70, 1);
        assert_eq!(written.gap(60, 80), Some(70));
        written.set(0, 300);
        assert!(written.is(0, 300));
        written.clear(299, 1);
        assert!(written.is(0, 299) && !written.is(299, 1));
    }

    #[test]
    fn a_copy_carries_the_gaps() {
        let (from, to) = (Written::none(64), Written::none(64));
        from.set(0, 10);
        to.set(0, 64);
        to.copy(5, &from, 0, 12);
        assert_eq!(to.gap(0, 64), Some(15));
        assert!(to.is(17, 47));
    }
}
