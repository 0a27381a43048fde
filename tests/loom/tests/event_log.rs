//! Every interleaving of a small event log, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p trail-loom --release`
#![cfg(loom)]

use std::num::NonZeroU64;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use trail_loom::event_log::event_log;

fn word(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n).expect("not 0")
}

#[test]
fn words_arrive_once_and_in_order_across_chunks() {
    loom::model(|| {
        let (mut writer, mut reader) = event_log();
        // Two words in the first chunk, one in the second, one in the third.
        (1..=2).for_each(|n| writer.push(word(n)));
        assert_eq!((reader.pop(), reader.pop()), (Some(word(1)), Some(word(2))));
        writer.push(word(3));
        let handle = thread::spawn(move || {
            writer.reserve(1);
            (4..=6).for_each(|n| writer.push(word(n)));
        });
        for n in 3..=6 {
            let got = loop {
                match reader.pop() {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, word(n));
        }
        handle.join().unwrap();
        assert_eq!(reader.pop(), None);
    });
}

#[test]
fn what_was_done_before_a_push_is_visible_to_the_reader() {
    loom::model(|| {
        let (mut writer, mut reader) = event_log();
        let live = Arc::new(AtomicU64::new(1));
        let seen = live.clone();
        let handle = thread::spawn(move || {
            live.store(0, Ordering::Relaxed);
            writer.push(word(1));
        });
        if reader.pop().is_some() {
            assert_eq!(seen.load(Ordering::Relaxed), 0);
        }
        handle.join().unwrap();
    });
}
