//! Copies to the host that have run and that a polling host may not see yet.
//!
//! A copy engine's writes are posted: they reach host memory in any order until something
//! fences them: a stream's memory write (`cuStreamWriteValue32` without `NO_MEMORY_BARRIER`), an
//! event, or a call that waits. A flag that is itself a copy may overtake its data. Writes to the
//! same bytes keep their order.

use std::ops::Range;

/// Copies in flight to host memory, oldest first.
#[derive(Default)]
pub(crate) struct Posted {
    writes: Vec<Write>,
}

struct Write {
    to: usize,
    bytes: Vec<u8>,
}

impl Write {
    fn range(&self) -> Range<usize> {
        self.to..self.to + self.bytes.len()
    }

    fn land(&self) {
        // SAFETY: the caller of the copy promised the memory until the copy is known to have run;
        // whatever tells so, an error included, lands all writes first, and so does freeing. Host
        // threads that poll read atomically, or know that the bytes may change.
        unsafe {
            std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), self.to as *mut u8, self.bytes.len())
        }
    }
}

impl Posted {
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Posts `bytes` to host address `to`.
    pub(crate) fn post(&mut self, to: usize, bytes: Vec<u8>) {
        self.writes.push(Write { to, bytes });
    }

    /// Lands one write that no older one to the same bytes precedes; `random` chooses it.
    pub(crate) fn land_one(&mut self, random: u64) {
        if self.writes.is_empty() {
            return;
        }
        let mut chosen = (random % self.writes.len() as u64) as usize;
        // An older one may itself have one that is older still.
        let older = |chosen: usize| {
            let range = self.writes[chosen].range();
            self.writes[..chosen].iter().position(|write| meet(&write.range(), &range))
        };
        while let Some(at) = older(chosen) {
            chosen = at;
        }
        self.writes.remove(chosen).land();
    }

    /// Lands all if one is to a byte of `range`, which is read or written now.
    pub(crate) fn land_over(&mut self, range: Range<usize>) {
        if self.writes.iter().any(|write| meet(&write.range(), &range)) {
            self.land_all();
        }
    }

    /// Lands all: a fence.
    pub(crate) fn land_all(&mut self) {
        self.writes.drain(..).for_each(|write| write.land());
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
