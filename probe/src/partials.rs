//! Working memory of the head's independent tasks, including their share of the logits.
//!
//! One region per task, each behind its own mutex. A region is locked once by the thread that runs
//! its task and once by the thread that finishes its rows; no thread waits, and a lock costs
//! nanoseconds beside a task of tens of microseconds. In return the whole interface is safe: a task
//! that runs twice, or concurrently with its finish, gives a stale row and no data race.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::kernel::ROW_LINES;
use crate::line::{Line, ZERO};

/// Rows of one task: a block of activations (96 KiB) and of hidden units (48 KiB) stays in L2.
pub const ROW_BLOCK: usize = if cfg!(miri) { 3 } else { 96 };

/// The working memory of one task: a block of at most [`ROW_BLOCK`] rows times one chunk of hidden
/// units.
pub(crate) struct Region {
    /// The current K block of the activations: `[ROW_BLOCK][ROW_LINES]` lines.
    pub(crate) inputs: Box<[Line]>,
    /// The chunk's hidden units in the first CHUNK_PANELS of `[ROW_BLOCK][ROW_LINES]` lines.
    pub(crate) hidden: Box<[Line]>,
    /// The chunk's share of the logits: `[ROW_BLOCK][panels of bins]` lines.
    pub(crate) logits: Box<[Line]>,
}

/// The working memory of a forward pass of up to a fixed number of rows; allocated once, reused
/// each step.
pub struct Partials {
    regions: Box<[Mutex<Region>]>,
}

impl Partials {
    /// One region for each of `tasks` tasks, for up to `max_rows` rows with logits of `panels`
    /// panels.
    pub(crate) fn with_regions(tasks: usize, max_rows: usize, panels: usize) -> Partials {
        let rows = ROW_BLOCK.min(max_rows);
        let region = || Region {
            inputs: vec![ZERO; rows * ROW_LINES].into(),
            hidden: vec![ZERO; rows * ROW_LINES].into(),
            logits: vec![ZERO; rows * panels].into(),
        };
        Partials { regions: (0..tasks).map(|_| Mutex::new(region())).collect() }
    }

    /// The region of `task`. A mutex poisoned by a panic is used all the same: the next run
    /// overwrites the whole region.
    pub(crate) fn region(&self, task: usize) -> MutexGuard<'_, Region> {
        self.regions[task].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
