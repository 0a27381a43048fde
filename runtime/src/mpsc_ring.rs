//! A bounded queue with many producers and one consumer: submissions and cancels reach the engine's
//! thread through two of these.
//!
//! A ring with one stamp per cell (Vyukov, "Bounded MPMC queue", 1024cores.net), with one consumer.
//! Positions count pushes, are never reset and wrap with `usize`; position p uses cell p mod
//! capacity. A cell's stamp says which side may access it next:
//!
//! | stamp        | state                                   | next access                         |
//! |--------------|-----------------------------------------|-------------------------------------|
//! | p            | empty, ready for the push of position p | the producer that claims p          |
//! | p + 1        | holds the value of position p           | the consumer, when its head is p    |
//! | p + capacity | empty again, one lap later              | as in the first line                |
//!
//! A producer claims position p by moving `tail` from p to p + 1, writes the value, then publishes
//! it by storing stamp p + 1 (release). The consumer loads the stamp (acquire), takes the value,
//! and frees the cell by storing p + capacity (release), which the producer of the next lap
//! loads (acquire). The value itself is never accessed by two threads at once.
//!
//! Lock-free for producers as a group; a producer that stalls between claim and publication
//! blocks the consumer at that cell, and the other producers only when the ring is full. Nothing
//! allocates after construction.

use std::mem::MaybeUninit;

use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

/// Smallest capacity: with one cell, "holds position p" and "ready for p + 1" are the same stamp.
pub const CAPACITY_MIN: usize = 2;

struct Cell<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Keeps the producers' counter off the cache lines of the consumer (64 bytes on x86-64 and most
/// Arm cores, fetched in pairs on recent Intel ones: Intel optimisation manual 3.7.3).
#[repr(align(128))]
struct OwnLine<T>(T);

struct Ring<T> {
    /// The next position to claim.
    tail: OwnLine<AtomicUsize>,
    /// The length is a power of two.
    cells: Box<[Cell<T>]>,
}

// SAFETY: a value is moved in by one thread and out by another, never shared, so `T: Send` is
// enough; the stamps keep those two accesses apart (module header).
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    fn cell(&self, position: usize) -> &Cell<T> {
        &self.cells[position & (self.cells.len() - 1)]
    }
}

impl<T> Drop for Ring<T> {
    /// Drops the values that were pushed and not popped.
    fn drop(&mut self) {
        let mask = self.cells.len() - 1;
        for (index, cell) in self.cells.iter().enumerate() {
            // An empty cell's stamp is a position of the cell itself, a full one's is one more.
            if cell.stamp.load(Ordering::Acquire) & mask == index {
                continue;
            }
            // SAFETY: `&mut self` excludes every producer and consumer. The stamp shows that a
            // value was published here and not taken.
            cell.value.with_mut(|value| unsafe { (*value).assume_init_drop() });
        }
    }
}

/// The pushing side; one clone for each thread that pushes.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Producer { ring: Arc::clone(&self.ring) }
    }
}

/// The popping side. There is one, and popping requires exclusive access.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    /// The next position to take.
    head: usize,
}

/// Creates a queue for `capacity` values, a power of two and at least [`CAPACITY_MIN`].
///
/// # Panics
///
/// On any other capacity.
pub fn mpsc_ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two() && capacity >= CAPACITY_MIN, "capacity {capacity}");
    let cell = |position| Cell {
        stamp: AtomicUsize::new(position),
        value: UnsafeCell::new(MaybeUninit::uninit()),
    };
    let cells = (0..capacity).map(cell).collect();
    let ring = Arc::new(Ring { tail: OwnLine(AtomicUsize::new(0)), cells });
    (Producer { ring: Arc::clone(&ring) }, Consumer { ring, head: 0 })
}

impl<T> Producer<T> {
    /// Pushes `value`; returns it if the queue is full.
    pub fn try_push(&self, value: T) -> Result<(), T> {
        let tail = &self.ring.tail.0;
        let mut position = tail.load(Ordering::Relaxed);
        loop {
            let cell = self.ring.cell(position);
            let ahead = cell.stamp.load(Ordering::Acquire).wrapping_sub(position) as isize;
            if ahead < 0 {
                return Err(value); // still holds the value of one lap ago
            }
            if ahead > 0 {
                position = tail.load(Ordering::Relaxed); // claimed by another producer
                continue;
            }
            // Relaxed: the stamp, not `tail`, orders the accesses to the value.
            let claim = tail.compare_exchange_weak(
                position,
                position.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if let Err(now) = claim {
                position = now;
                continue;
            }
            // SAFETY: the stamp was `position`: the cell is empty and the consumer is done with it.
            // The claim made this thread the only producer of `position`, and the consumer reads
            // only after the stamp stored below.
            cell.value.with_mut(|cell| unsafe { (*cell).write(value) });
            cell.stamp.store(position.wrapping_add(1), Ordering::Release);
            return Ok(());
        }
    }
}

impl<T> Consumer<T> {
    /// Pops the oldest value, if its producer has published it.
    pub fn pop(&mut self) -> Option<T> {
        let cell = self.ring.cell(self.head);
        if cell.stamp.load(Ordering::Acquire) != self.head.wrapping_add(1) {
            return None;
        }
        // SAFETY: the stamp shows that the value of `head` is published: its producer is done, the
        // next one needs the stamp stored below, and `&mut self` is the only consumer.
        let value = cell.value.with_mut(|cell| unsafe { (*cell).assume_init_read() });
        cell.stamp.store(self.head.wrapping_add(self.ring.cells.len()), Ordering::Release);
        self.head = self.head.wrapping_add(1);
        Some(value)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;

    /// Longest wait for all values: what comes later hangs.
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn first_in_first_out_and_full() {
        let (producer, mut consumer) = mpsc_ring(4);
        assert_eq!(consumer.pop(), None);
        for lap in 0..3 {
            for i in 0..4 {
                assert_eq!(producer.try_push(lap * 4 + i), Ok(()));
            }
            assert_eq!(producer.try_push(99), Err(99));
            for i in 0..4 {
                assert_eq!(consumer.pop(), Some(lap * 4 + i));
            }
            assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn values_left_in_the_queue_are_dropped_once() {
        let witness = Arc::new(());
        let (producer, mut consumer) = mpsc_ring(4);
        for _ in 0..4 {
            producer.try_push(Arc::clone(&witness)).unwrap();
        }
        drop(consumer.pop());
        assert!(producer.try_push(Arc::clone(&witness)).is_ok());
        drop(consumer);
        assert_eq!(Arc::strong_count(&witness), 5);
        drop(producer);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn many_producers_lose_nothing_and_keep_their_order() {
        const PRODUCERS: usize = 4;
        const EACH: usize = if cfg!(miri) { 6 } else { 20_000 };
        let (producer, mut consumer) = mpsc_ring(8);
        let mut next = [0; PRODUCERS];
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for id in 0..PRODUCERS {
                let producer = producer.clone();
                scope.spawn(move || {
                    for i in 0..EACH {
                        while producer.try_push((id, i)).is_err() {
                            assert!(begin.elapsed() < LIMIT, "{id} finds no room for {i}");
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while next.iter().sum::<usize>() < PRODUCERS * EACH {
                let Some((id, i)) = consumer.pop() else {
                    assert!(begin.elapsed() < LIMIT, "values are lost: {next:?}");
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(i, next[id]);
                next[id] += 1;
            }
        });
        assert_eq!(consumer.pop(), None);
    }
}
