//! Seats: who has which row of the block table while it is in the batch.
//!
//! A request takes a seat with its first step, keeps it from one step to the next, and leaves it with the first step that it is not in. What
//! the device keeps of a seated request (block table, last token, marks) is by seat.

use super::layout::NONE;
use crate::backend::Segment;

/// A seat, and what was said of its tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    /// The tenant.
    slot: u32,
    /// The last step that had it.
    step: u64,
    /// Position after its last row: where it goes on, if it is the same request.
    end: u32,
    /// Blocks of it that the table has.
    pub(super) blocks: u32,
    /// The row it had among those that stand alone, or [`NONE`].
    pub(super) row: u32,
    /// Counts tenants: what was written for another count is not this one's.
    pub(super) tenancy: u32,
}

/// A segment's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) seat: u32,
    /// It has just sat down, or begins anew.
    pub(super) is_new: bool,
}

/// All seats.
pub(super) struct Seats {
    /// By slot; [`NONE`]: not seated.
    of_slot: Box<[u32]>,
    seats: Box<[Seat]>,
    occupied: Vec<u32>,
    free: Vec<u32>,
}

impl Seats {
    pub(super) fn new(count: usize, slots: usize) -> Seats {
        let empty = Seat { slot: NONE, step: 0, end: 0, blocks: 0, row: NONE, tenancy: 0 };
        Seats {
            of_slot: vec![NONE; slots].into(),
            seats: vec![empty; count].into(),
            occupied: Vec::with_capacity(count),
            free: (0..count as u32).rev().collect(),
        }
    }

    pub(super) fn get_mut(&mut self, seat: u32) -> &mut Seat {
        &mut self.seats[seat as usize]
    }

    /// Seats the requests of `segments` for `step`; `taken` gets each segment's place.
    pub(super) fn take(&mut self, step: u64, segments: &[Segment], taken: &mut Vec<Taken>) {
        taken.clear();
        for segment in segments {
            let seat = self.of_slot[segment.slot as usize];
            let is_new = match self.seats.get_mut(seat as usize) {
                None => true,
                Some(found) => {
                    found.step = step;
                    // Who goes on elsewhere begins anew, or is another request in the same slot.
                    let is_new = found.end != segment.start;
                    if is_new {
                        found.forget();
                    }
                    is_new
                }
            };
            taken.push(Taken { seat, is_new });
        }
        self.leave(step);
        for (segment, taken) in segments.iter().zip(taken) {
            if taken.seat == NONE {
                taken.seat = self.free.pop().expect("no more segments than seats");
                self.of_slot[segment.slot as usize] = taken.seat;
                self.occupied.push(taken.seat);
                let seat = &mut self.seats[taken.seat as usize];
                seat.forget();
                (seat.slot, seat.step) = (segment.slot, step);
            }
            self.seats[taken.seat as usize].end = segment.start + segment.len;
        }
    }

    /// The request in `slot` has lost its blocks: should it come back before a step was launched without it, it sits down anew.
    pub(super) fn stand_up(&mut self, slot: u32) {
        if let Some(seat) = self.seats.get_mut(self.of_slot[slot as usize] as usize) {
            seat.end = NONE;
        }
    }

    /// Frees the seats of those that `step` does not have.
    fn leave(&mut self, step: u64) {
        let Seats { of_slot, seats, occupied, free } = self;
        occupied.retain(|&number| {
            let seat = &seats[number as usize];
            if seat.step != step {
                of_slot[seat.slot as usize] = NONE;
                free.push(number);
            }
            seat.step == step
        });
    }
}

impl Seat {
    /// What was written is of another tenant.
    fn forget(&mut self) {
        (self.blocks, self.row) = (0, NONE);
        self.tenancy = self.tenancy.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(slot: u32, start: u32, len: u32) -> Segment {
        Segment { slot, start, len, first_row: 0, first_block: 0, num_blocks: 0, logits: true }
    }

    #[test]
    fn seats_are_kept_left_and_taken_again() {
        let mut seats = Seats::new(2, 9);
        let mut taken = Vec::new();
        seats.take(1, &[segment(7, 0, 5), segment(3, 0, 2)], &mut taken);
        let first = taken.clone();
        assert!(first.iter().all(|taken| taken.is_new) && first[0].seat != first[1].seat);
        // Both go on, in another order.
        seats.take(2, &[segment(3, 2, 1), segment(7, 5, 1)], &mut taken);
        let kept = |at: usize| Taken { seat: first[at].seat, is_new: false };
        assert_eq!(taken, [kept(1), kept(0)]);
        // 3 leaves, 8 takes its seat in the same step; 7 begins anew in its own.
        seats.take(3, &[segment(8, 40, 1), segment(7, 0, 3)], &mut taken);
        let new = |at: usize| Taken { seat: first[at].seat, is_new: true };
        assert_eq!(taken, [new(1), new(0)]);
        // 3 comes back when 8 has left.
        seats.take(4, &[segment(3, 3, 1)], &mut taken);
        assert!(taken[0].is_new);
    }

    #[test]
    fn who_lost_its_blocks_sits_down_anew_though_no_step_went_without_it() {
        let mut seats = Seats::new(2, 9);
        let mut taken = Vec::new();
        seats.take(1, &[segment(7, 0, 5), segment(3, 0, 2)], &mut taken);
        seats.stand_up(7);
        // Not seated: nothing to forget.
        seats.stand_up(8);
        seats.take(2, &[segment(7, 5, 1), segment(3, 2, 1)], &mut taken);
        assert_eq!([taken[0].is_new, taken[1].is_new], [true, false]);
    }
}
