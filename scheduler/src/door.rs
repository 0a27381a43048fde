//! The bounded door between many threads and the engine: submissions and cancels come in by it.
//!
//! A ring with one stamp per cell (Vyukov, "Bounded MPMC queue", 1024cores.net), with one consumer.
//! Positions count pushes for ever and wrap with `usize`; position p uses cell p mod capacity.
//! A cell's stamp says whose turn it is:
//!
//! | stamp        | state                                   | next to act                          |
//! |--------------|-----------------------------------------|--------------------------------------|
//! | p            | empty, waits for the push of position p | the producer that moves `tail` p→p+1 |
//! | p + 1        | holds the value of position p           | the consumer, when its head is p     |
//! | p + capacity | empty again, one lap on                 | as the first line                    |
//!
//! A producer claims position p by moving `tail` from p to p + 1, writes the value, then publishes
//! it by storing stamp p + 1 (release). The consumer loads the stamp (acquire), takes the value,
//! and hands the cell back by storing p + capacity (release), which the producer of the next lap
//! loads (acquire). So the value itself is never accessed by two threads at once.
//!
//! Lock-free for producers as a group; a producer that stalls between claim and publication holds
//! up the consumer at that cell, not the other producers until the ring is full. Nothing allocates
//! after construction.

use std::mem::MaybeUninit;

use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

/// Least capacity: with one cell, "holds position p" and "waits for p + 1" are the same stamp.
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
    /// A power of two of them.
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
    /// Drops what was pushed and never popped.
    fn drop(&mut self) {
        let mask = self.cells.len() - 1;
        for (index, cell) in self.cells.iter().enumerate() {
            // An empty cell's stamp is a position of the cell itself, a full one's is one more.
            if cell.stamp.load(Ordering::Acquire) & mask == index {
                continue;
            }
            // SAFETY: `&mut self`: no producer or consumer is left. The stamp says that a value was
            // published here and not taken.
            cell.value.with_mut(|value| unsafe { (*value).assume_init_drop() });
        }
    }
}

/// The outside of a door: clone one for each thread that pushes.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Producer { ring: Arc::clone(&self.ring) }
    }
}

/// The inside of a door: there is one, and popping needs it exclusively.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    /// The next position to take.
    head: usize,
}

/// A door for `capacity` values: a power of two, at least [`CAPACITY_MIN`].
///
/// # Panics
///
/// On any other capacity.
pub fn door<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
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
    /// Puts `value` in, or gives it back if the door is full.
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
            // The claim made this thread the only producer of `position`, and the consumer does
            // not look before the stamp below.
            cell.value.with_mut(|slot| unsafe { (*slot).write(value) });
            cell.stamp.store(position.wrapping_add(1), Ordering::Release);
            return Ok(());
        }
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest value, if its producer has published it.
    pub fn pop(&mut self) -> Option<T> {
        let cell = self.ring.cell(self.head);
        if cell.stamp.load(Ordering::Acquire) != self.head.wrapping_add(1) {
            return None;
        }
        // SAFETY: the stamp says that the value of `head` is published; its producer is done, the
        // next one waits for the stamp below, and `&mut self` is the only consumer.
        let value = cell.value.with_mut(|slot| unsafe { (*slot).assume_init_read() });
        cell.stamp.store(self.head.wrapping_add(self.ring.cells.len()), Ordering::Release);
        self.head = self.head.wrapping_add(1);
        Some(value)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn first_in_first_out_and_full() {
        let (outside, mut inside) = door(4);
        assert_eq!(inside.pop(), None);
        for lap in 0..3 {
            for i in 0..4 {
                assert_eq!(outside.try_push(lap * 4 + i), Ok(()));
            }
            assert_eq!(outside.try_push(99), Err(99));
            for i in 0..4 {
                assert_eq!(inside.pop(), Some(lap * 4 + i));
            }
            assert_eq!(inside.pop(), None);
        }
    }

    #[test]
    fn what_is_left_inside_is_dropped_once() {
        let witness = Arc::new(());
        let (outside, mut inside) = door(4);
        for _ in 0..4 {
            outside.try_push(Arc::clone(&witness)).unwrap();
        }
        drop(inside.pop());
        assert!(outside.try_push(Arc::clone(&witness)).is_ok());
        drop(inside);
        assert_eq!(Arc::strong_count(&witness), 5);
        drop(outside);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn many_producers_lose_nothing_and_keep_their_order() {
        const PRODUCERS: usize = 4;
        const EACH: usize = if cfg!(miri) { 40 } else { 20_000 };
        let (outside, mut inside) = door(8);
        let mut next = [0; PRODUCERS];
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let outside = outside.clone();
                scope.spawn(move || {
                    for i in 0..EACH {
                        while outside.try_push((producer, i)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while next.iter().sum::<usize>() < PRODUCERS * EACH {
                let Some((producer, i)) = inside.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(i, next[producer]);
                next[producer] += 1;
            }
        });
        assert_eq!(inside.pop(), None);
    }
}
