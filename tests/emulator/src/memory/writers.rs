//! Which launch wrote each word of an allocation last, for kernels that begin before others have
//! ended (programmatic dependent launch).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Words of 4 bytes of a page of entries; a page is made when a kernel first writes to it.
const PAGE: usize = 4096;

type Page = OnceLock<Box<[AtomicU32]>>;

/// Last writers of an allocation's words. Numbers of launches have 32 bits here, which no test
/// wears out.
pub(crate) struct Writers {
    bytes: u64,
    pages: OnceLock<Box<[Page]>>,
}

impl Writers {
    pub(crate) fn new(bytes: u64) -> Writers {
        Writers { bytes, pages: OnceLock::new() }
    }

    fn words(offset: u64, bytes: u64) -> impl Iterator<Item = (usize, usize)> {
        let words = (offset / 4) as usize..=((offset + bytes - 1) / 4) as usize;
        words.map(|word| (word / PAGE, word % PAGE))
    }

    /// Notes a write.
    pub(crate) fn write(&self, launch: u64, offset: u64, bytes: u64) {
        let count = self.bytes.div_ceil(4 * PAGE as u64);
        let pages = self.pages.get_or_init(|| (0..count).map(|_| Page::new()).collect());
        for (page, word) in Self::words(offset, bytes) {
            let Some(page) = pages.get(page) else { return };
            let page = page.get_or_init(|| (0..PAGE).map(|_| AtomicU32::new(0)).collect());
            page[word].store(launch as u32, Relaxed);
        }
    }

    /// Returns true if launch `first` or a later one wrote there.
    pub(crate) fn since(&self, first: u64, offset: u64, bytes: u64) -> bool {
        let Some(pages) = self.pages.get() else { return false };
        Self::words(offset, bytes).any(|(page, word)| {
            let page = pages.get(page).and_then(Page::get);
            page.is_some_and(|page| u64::from(page[word].load(Relaxed)) >= first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_writer_counts_by_words() {
        let writers = Writers::new(40_000);
        assert!(!writers.since(1, 0, 40_000));
        writers.write(3, 16_380, 8);
        assert!(writers.since(3, 16_380, 4) && writers.since(2, 16_386, 1));
        assert!(!writers.since(4, 0, 40_000) && !writers.since(1, 16_376, 4));
        writers.write(5, 16_384, 2);
        assert!(writers.since(5, 16_387, 1) && !writers.since(5, 16_380, 4));
    }
}
