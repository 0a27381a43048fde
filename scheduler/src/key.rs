//! Rank of a request in the order over all requests.

use crate::request::{Phase, RequestIdx, RequestState};

/// Sort key of a request: the caller's priority, then class, then value, then arrival; lower goes
/// first. Classes that may not be preempted precede all priorities.
///
/// Packed so that one integer comparison decides: bits 120..128 priority, 117..120 class, 53..117
/// the value's bits made monotone, 0..53 arrival sequence. The order is total: a NaN value goes
/// last in its class, and -0.0 equals 0.0. Two requests never share a key, as arrival sequences are
/// unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(u128);

/// Bits of the arrival sequence in a key.
const SEQ_BITS: u32 = 53;

/// First bits of the class and of the priority.
const CLASS_BIT: u32 = SEQ_BITS + 64;
const PRIORITY_BIT: u32 = CLASS_BIT + 3;

/// Priorities that differ; those beyond count as the nearest.
const PRIORITIES: i32 = 127;

impl Key {
    /// Class of a resident request that may no longer be preempted.
    pub const PINNED: u8 = 0;
    /// Class of a request that may not be preempted, but lost its KV to memory pressure.
    pub const EVICTED: u8 = 1;
    /// Class of a request that a policy ranks by value before those that are overdue.
    pub const EXPRESS: u8 = 2;
    /// Class of a request that would end after a policy's bound: first in, first out.
    pub const OVERDUE: u8 = 3;
    /// Class of all other requests: ranked by value.
    pub const OPEN: u8 = 4;

    /// The key of (`class`, `value`, `seq`); classes are 0 to 7.
    pub fn new(class: u8, value: f64, seq: u64) -> Key {
        debug_assert!(seq >> SEQ_BITS == 0, "2^53 arrivals take longer than any run");
        debug_assert!(class < 8, "a class has three bits");
        let key = Key(u128::from(class.min(7)) << CLASS_BIT
            | u128::from(monotone_bits(value)) << SEQ_BITS
            | u128::from(seq));
        key.with_priority(0)
    }

    /// The key of the same request with the caller's priority, from -127 to 127: lower goes first.
    /// No request that may not be preempted has one.
    #[must_use]
    pub(crate) fn with_priority(self, priority: i32) -> Key {
        let is_fixed = self.class() <= Key::EVICTED;
        let above_least = priority.clamp(-PRIORITIES, PRIORITIES) + PRIORITIES + 1;
        let bits = if is_fixed { 0 } else { above_least as u128 };
        Key(self.0 & !(u128::MAX << PRIORITY_BIT) | bits << PRIORITY_BIT)
    }

    /// The key of a started request that the policy does not allow to be preempted.
    ///
    /// Running requests precede paused ones, so that one which was paused for lack of blocks takes
    /// a free place in the batch, not that of another pinned request. Evicted ones come next,
    /// before all others: a request past its window is never ranked last.
    pub fn pinned(request: &RequestState) -> Key {
        let (class, value) = match request.phase {
            Phase::Running => (Key::PINNED, 0.0),
            Phase::Paused | Phase::SwappingIn => (Key::PINNED, 1.0),
            Phase::Waiting | Phase::SwappingOut | Phase::Swapped | Phase::Free => {
                (Key::EVICTED, 0.0)
            }
        };
        Key::new(class, value, request.seq)
    }

    /// The class: 0 goes first.
    pub fn class(self) -> u8 {
        (self.0 >> CLASS_BIT) as u8 & 7
    }

    /// The same value and arrival in another class.
    pub(crate) fn in_class(self, class: u8) -> Key {
        Key(self.0 & !(7 << CLASS_BIT) | u128::from(class) << CLASS_BIT)
    }

    /// True for the classes that are ranked by value, thus by predictions.
    pub(crate) fn is_by_value(self) -> bool {
        matches!(self.class(), Key::EXPRESS | Key::OPEN)
    }
}

/// Maps floats to integers of the same order.
fn monotone_bits(value: f64) -> u64 {
    if value.is_nan() {
        return u64::MAX;
    }
    let bits = (value + 0.0).to_bits(); // -0.0 + 0.0 is 0.0
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// A request and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ranked {
    pub(crate) key: Key,
    pub(crate) idx: RequestIdx,
}

/// Moves per request after which the order counts as new, and is sorted from scratch.
const MAX_MOVES: usize = 16;

/// Sorts by rank what was sorted a step ago: by insertion, as a token and a prediction move a
/// request by a few places, at less than half the cost of a sort from scratch.
pub(crate) fn sort_again(ranked: &mut [Ranked]) {
    let mut moves_left = MAX_MOVES * ranked.len();
    for sorted in 1..ranked.len() {
        let new = ranked[sorted];
        if new.key > ranked[sorted - 1].key {
            continue;
        }
        let mut at = sorted;
        while at > 0 && new.key < ranked[at - 1].key {
            ranked[at] = ranked[at - 1];
            at -= 1;
        }
        ranked[at] = new;
        let moves = sorted - at;
        if moves > moves_left {
            return ranked.sort_unstable_by_key(|ranked| ranked.key);
        }
        moves_left -= moves;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u64 = (1 << SEQ_BITS) - 1;

    /// Sorted values that moved a little and much, and none.
    #[test]
    fn few_moves_and_many_end_in_the_order_of_a_sort() {
        let mut values: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101)).collect();
        values.sort_by(f64::total_cmp);
        let wave = |x: f64| (7.0 * x).sin();
        let changes: [&dyn Fn(f64) -> f64; 4] =
            [&|x| (x - 5.0).abs(), &|x| x + 3.0 * wave(x), &|x| -x, &wave];
        for change in changes {
            let ranked = |(idx, &value): (u32, &f64)| Ranked {
                key: Key::new(Key::OPEN, change(value), u64::from(idx)),
                idx: RequestIdx(idx),
            };
            let mut moved: Vec<Ranked> = (0..).zip(&values).map(ranked).collect();
            let mut sorted = moved.clone();
            sorted.sort_unstable();
            sort_again(&mut moved);
            assert_eq!(moved, sorted);
        }
        sort_again(&mut []);
    }

    #[test]
    fn priorities_precede_classes_but_not_those_that_keep_their_place() {
        let key = |class, value, priority| Key::new(class, value, 3).with_priority(priority);
        let order = [
            key(Key::PINNED, 9.0, 127),
            key(Key::EVICTED, 0.0, 5),
            key(Key::OPEN, 9.0, i32::MIN),
            key(Key::EXPRESS, 0.0, -1),
            key(Key::OPEN, 0.0, -1),
            key(Key::EXPRESS, f64::NEG_INFINITY, 0),
            key(Key::OPEN, f64::INFINITY, 0),
            key(Key::OVERDUE, 0.0, 1),
            key(Key::OPEN + 1, 0.0, i32::MAX),
        ];
        assert!(order.is_sorted() && order.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(key(Key::OPEN, 1.0, 127), key(Key::OPEN, 1.0, 1000), "beyond the last");
        assert_eq!(key(Key::OPEN, 1.0, 0), Key::new(Key::OPEN, 1.0, 3));
        let express = key(Key::OPEN, 2.0, -7).in_class(Key::EXPRESS);
        assert_eq!((express, express.class()), (key(Key::EXPRESS, 2.0, -7), Key::EXPRESS));
        assert_eq!(key(Key::PINNED, 1.0, 9).class(), Key::PINNED);
    }

    #[test]
    fn class_then_value_then_arrival() {
        let values = [f64::NEG_INFINITY, -1.5, 0.0, 1e-30, 1.0, 7.5, f64::INFINITY, f64::NAN];
        let mut last = None;
        for class in 0..3 {
            for value in values {
                for seq in [0, 1, LAST] {
                    let key = Some(Key::new(class, value, seq));
                    assert!(last < key, "{class} {value} {seq}");
                    last = key;
                }
            }
        }
        assert_eq!(Key::new(1, -0.0, 5), Key::new(1, 0.0, 5));
        assert_eq!(Key::new(1, -f64::NAN, 5), Key::new(1, f64::NAN, 5));
        assert_eq!(Key::new(2, f64::NAN, LAST).class(), 2);
    }
}
