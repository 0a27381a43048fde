//! Batch slots: the persistent row that each request of the batch has in the device's metadata.
//!
//! A request gets a slot with its first step, keeps it while each step includes it, and loses it
//! with the first step that does not. Its block table, last token and token counts are stored by
//! `batch_idx`, the slot's index.

use super::layout::NONE;
use crate::backend::Segment;

/// A slot, and what the device already has of the request in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchSlot {
    /// Index of the request.
    request: u32,
    /// The last step that included the request.
    step: u64,
    /// Position after the request's last row: where its next segment starts.
    end: u32,
    /// Entries of the block table that were written.
    pub(super) blocks: u32,
    /// The request's row among the decode rows of the last step, or [`NONE`].
    pub(super) row: u32,
    /// Counts the requests that had the slot: what was written for another generation is stale.
    pub(super) generation: u32,
}

/// The slot of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) batch_idx: u32,
    /// The request has just got the slot, or starts over.
    pub(super) is_new: bool,
}

/// All slots.
pub(super) struct BatchSlots {
    /// `batch_idx` by request index; [`NONE`]: not in the batch.
    of_request: Box<[u32]>,
    slots: Box<[BatchSlot]>,
    occupied: Vec<u32>,
    free: Vec<u32>,
}

impl BatchSlots {
    /// `count` slots, for requests whose indices are below `requests`.
    pub(super) fn new(count: usize, requests: usize) -> BatchSlots {
        let empty =
            BatchSlot { request: NONE, step: 0, end: 0, blocks: 0, row: NONE, generation: 0 };
        BatchSlots {
            of_request: vec![NONE; requests].into(),
            slots: vec![empty; count].into(),
            occupied: Vec::with_capacity(count),
            free: (0..count as u32).rev().collect(),
        }
    }

    pub(super) fn get_mut(&mut self, batch_idx: u32) -> &mut BatchSlot {
        &mut self.slots[batch_idx as usize]
    }

    /// Assigns slots to the requests of `segments` for `step`, in the order of the segments, and
    /// frees those of requests that the step leaves out.
    pub(super) fn assign(
        &mut self,
        step: u64,
        segments: &[Segment],
        assignments: &mut Vec<Assignment>,
    ) {
        assignments.clear();
        for segment in segments {
            let batch_idx = self.of_request[segment.request as usize];
            let is_new = match self.slots.get_mut(batch_idx as usize) {
                None => true,
                Some(found) => {
                    found.step = step;
                    // A start that does not continue the last segment means a recompute.
                    let is_new = segment.begins || found.end != segment.start;
                    if is_new {
                        found.reset();
                    }
                    is_new
                }
            };
            assignments.push(Assignment { batch_idx, is_new });
        }
        self.release_absent(step);
        for (segment, assigned) in segments.iter().zip(assignments) {
            if assigned.batch_idx == NONE {
                assigned.batch_idx = self.free.pop().expect("no more segments than slots");
                self.of_request[segment.request as usize] = assigned.batch_idx;
                self.occupied.push(assigned.batch_idx);
                let slot = &mut self.slots[assigned.batch_idx as usize];
                slot.reset();
                (slot.request, slot.step) = (segment.request, step);
            }
            // After draft tokens the request goes on where they are right, and its token counts are
            // not those that the sampler left.
            let end = segment.start + segment.len;
            self.slots[assigned.batch_idx as usize].end =
                if segment.drafts > 0 { NONE } else { end };
        }
    }

    /// Marks the slot of a request whose blocks were taken away: should the request return before a
    /// step was launched without it, everything is written again.
    pub(super) fn invalidate(&mut self, request: u32) {
        if let Some(slot) = self.slots.get_mut(self.of_request[request as usize] as usize) {
            slot.end = NONE;
        }
    }

    /// Frees the slots of requests that `step` does not include.
    fn release_absent(&mut self, step: u64) {
        let BatchSlots { of_request, slots, occupied, free } = self;
        occupied.retain(|&batch_idx| {
            let slot = &slots[batch_idx as usize];
            if slot.step != step {
                of_request[slot.request as usize] = NONE;
                free.push(batch_idx);
            }
            slot.step == step
        });
    }
}

impl BatchSlot {
    /// Forgets what was written for the slot's last generation.
    fn reset(&mut self) {
        (self.blocks, self.row) = (0, NONE);
        self.generation = self.generation.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SegmentState;

    fn segment(request: u32, start: u32, len: u32) -> Segment {
        Segment {
            request,
            start,
            len,
            begins: start == 0,
            first_row: 0,
            first_block: 0,
            num_blocks: 0,
            logits: true,
            drafts: 0,
            first_scored: 0,
            scored: 0,
            adapter: None,
            state: SegmentState::default(),
        }
    }

    #[test]
    fn slots_are_kept_released_and_assigned_again() {
        let mut slots = BatchSlots::new(2, 9);
        let mut assigned = Vec::new();
        slots.assign(1, &[segment(7, 0, 5), segment(3, 0, 2)], &mut assigned);
        let first = assigned.clone();
        assert!(first.iter().all(|one| one.is_new) && first[0].batch_idx != first[1].batch_idx);
        // Both continue, in another order.
        slots.assign(2, &[segment(3, 2, 1), segment(7, 5, 1)], &mut assigned);
        let kept = |at: usize| Assignment { batch_idx: first[at].batch_idx, is_new: false };
        assert_eq!(assigned, [kept(1), kept(0)]);
        // 3 is left out, 8 gets its slot in the same step; 7 starts over in its own.
        slots.assign(3, &[segment(8, 40, 1), segment(7, 0, 3)], &mut assigned);
        let new = |at: usize| Assignment { batch_idx: first[at].batch_idx, is_new: true };
        assert_eq!(assigned, [new(1), new(0)]);
        // 3 returns when 8 is left out.
        slots.assign(4, &[segment(3, 3, 1)], &mut assigned);
        assert!(assigned[0].is_new);
    }

    /// A new request of the index may begin where the last one ended, with shared blocks.
    #[test]
    fn a_request_that_begins_is_new_wherever_it_does() {
        let mut slots = BatchSlots::new(2, 9);
        let mut assigned = Vec::new();
        slots.assign(1, &[segment(7, 0, 16)], &mut assigned);
        slots.assign(2, &[Segment { begins: true, ..segment(7, 16, 1) }], &mut assigned);
        assert!(assigned[0].is_new);
        slots.assign(3, &[segment(7, 17, 1)], &mut assigned);
        assert!(!assigned[0].is_new);
    }

    #[test]
    fn an_invalidated_slot_is_new_in_the_next_step() {
        let mut slots = BatchSlots::new(2, 9);
        let mut assigned = Vec::new();
        slots.assign(1, &[segment(7, 0, 5), segment(3, 0, 2)], &mut assigned);
        slots.invalidate(7);
        // Not in the batch: no effect.
        slots.invalidate(8);
        slots.assign(2, &[segment(7, 5, 1), segment(3, 2, 1)], &mut assigned);
        assert_eq!([assigned[0].is_new, assigned[1].is_new], [true, false]);
    }
}
