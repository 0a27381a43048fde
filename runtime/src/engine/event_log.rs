//! The events of one request as words, between the engine's thread and the caller: one writer, one
//! reader, no lock, no bound.
//!
//! A list of chunks of atomic words. The writer stores each word once, and the reader takes the
//! words in order; 0 is a word that is not written yet. A full chunk links the next one, and the
//! later of the two sides to leave a chunk frees it, so that the log holds what is unread, up to a
//! chunk. A store releases and a load acquires: what the writer did before a push is visible to the
//! reader of the word.
//!
//! A push costs one store. It allocates only where a chunk is full: [`LogWriter::reserve`] makes
//! room ahead of need.

use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use crate::sync::{AtomicU64, Ordering};

/// Words of the first chunk, made with the log: room for a request that ends before it runs.
const FIRST_WORDS: usize = 4;

/// Most words of a chunk: 32 KiB. Few under Miri, which takes a millisecond for each.
pub const CHUNK_WORDS: usize = if cfg!(miri) { 32 } else { 4096 };

struct Chunk {
    words: Box<[AtomicU64]>,
    next: OnceLock<Arc<Chunk>>,
}

impl Chunk {
    fn new(words: usize) -> Arc<Chunk> {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Chunk { words, next: OnceLock::new() })
    }
}

/// The writing end.
pub struct LogWriter {
    chunk: Arc<Chunk>,
    /// Index of the next word in `chunk`.
    at: usize,
}

/// The reading end.
pub struct LogReader {
    chunk: Arc<Chunk>,
    /// Index of the next word in `chunk`.
    at: usize,
}

/// Creates an empty log.
pub fn event_log() -> (LogWriter, LogReader) {
    let chunk = Chunk::new(FIRST_WORDS);
    (LogWriter { chunk: chunk.clone(), at: 0 }, LogReader { chunk, at: 0 })
}

impl LogWriter {
    /// Allocates the next chunks, of `words` words and at most [`CHUNK_WORDS`] each, as far as
    /// there are none.
    pub fn reserve(&mut self, words: usize) {
        let mut last = self.chunk.clone();
        for first in (0..words.max(1)).step_by(CHUNK_WORDS) {
            let len = (words - first).clamp(1, CHUNK_WORDS);
            let next = last.next.get_or_init(|| Chunk::new(len)).clone();
            last = next;
        }
    }

    /// Appends a word.
    pub fn push(&mut self, word: NonZeroU64) {
        if self.at == self.chunk.words.len() {
            let next = self.chunk.next.get_or_init(|| Chunk::new(CHUNK_WORDS)).clone();
            (self.chunk, self.at) = (next, 0);
        }
        self.chunk.words[self.at].store(word.get(), Ordering::Release);
        self.at += 1;
    }
}

impl LogReader {
    /// Takes the oldest word, if any.
    pub fn pop(&mut self) -> Option<NonZeroU64> {
        if self.at == self.chunk.words.len() {
            let next = self.chunk.next.get()?.clone();
            (self.chunk, self.at) = (next, 0);
        }
        let word = NonZeroU64::new(self.chunk.words[self.at].load(Ordering::Acquire))?;
        self.at += 1;
        Some(word)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Longest wait for all words: what comes later hangs.
    const LIMIT: Duration = Duration::from_secs(60);

    fn word(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).expect("not 0")
    }

    #[test]
    fn words_come_in_order_across_chunks_and_read_chunks_are_freed() {
        let (mut writer, mut reader) = event_log();
        assert_eq!(reader.pop(), None);
        let first = Arc::downgrade(&reader.chunk);
        writer.reserve(3);
        writer.reserve(100); // the next chunk is there already
        let count = 10 + CHUNK_WORDS as u64;
        (1..=count).for_each(|n| writer.push(word(n)));
        assert!(first.upgrade().is_some(), "it is unread");
        assert_eq!((1..=7).map(|_| reader.pop().unwrap().get()).sum::<u64>(), 28);
        assert!(first.upgrade().is_none());
        assert!((8..=count).all(|n| reader.pop() == Some(word(n))));
        assert_eq!(reader.pop(), None);
        writer.push(word(1));
        assert_eq!((reader.pop(), reader.pop()), (Some(word(1)), None));
    }

    #[test]
    fn words_of_several_chunks_are_reserved_once() {
        let (mut writer, mut reader) = event_log();
        let ahead = |writer: &LogWriter| {
            let next = |chunk: &Arc<Chunk>| chunk.next.get().cloned();
            let chunks = std::iter::successors(next(&writer.chunk), next);
            chunks.map(|chunk| chunk.words.len()).collect::<Vec<_>>()
        };
        writer.reserve(2 * CHUNK_WORDS + 5);
        assert_eq!(ahead(&writer), [CHUNK_WORDS, CHUNK_WORDS, 5]);
        writer.reserve(CHUNK_WORDS);
        assert_eq!(ahead(&writer).len(), 3);
        let count = (FIRST_WORDS + 2 * CHUNK_WORDS + 5) as u64;
        (1..=count).for_each(|n| writer.push(word(n)));
        assert_eq!(ahead(&writer), [0; 0]);
        assert!((1..=count).all(|n| reader.pop() == Some(word(n))));
    }

    #[test]
    fn a_reader_on_another_thread_misses_nothing() {
        const COUNT: u64 = if cfg!(miri) { 20 } else { 50_000 };
        let (mut writer, mut reader) = event_log();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || (1..=COUNT).for_each(|n| writer.push(word(n))));
            for n in 1..=COUNT {
                let got = loop {
                    match reader.pop() {
                        Some(got) => break got,
                        None => std::thread::yield_now(),
                    }
                    assert!(begin.elapsed() < LIMIT, "word {n} does not arrive");
                };
                assert_eq!(got.get(), n);
            }
        });
    }
}
