//! Changes of the set of blocks that are found by their content.

use super::{BlockHash, BlockId};

/// A change of the set of blocks that requests find by hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// A block is found by `hash` from now on.
    Known {
        /// Its hash.
        hash: BlockHash,
        /// Hash of the block before it in its sequence; `None` for a first one.
        parent: Option<BlockHash>,
        /// The block.
        block: BlockId,
    },
    /// No block is found by `hash` any more.
    Forgotten {
        /// The hash.
        hash: BlockHash,
    },
}

/// The changes since they were last taken, if they are recorded.
#[derive(Default)]
pub(super) struct BlockChanges(Option<Vec<BlockChange>>);

impl BlockChanges {
    /// Records changes from now on.
    pub(super) fn record(&mut self, num_blocks: usize) {
        // Between two plans a block is known once and forgotten once, at the most.
        self.0.get_or_insert_with(|| Vec::with_capacity(2 * num_blocks));
    }

    /// Adds a change where they are recorded.
    pub(super) fn push(&mut self, change: BlockChange) {
        if let Some(changes) = &mut self.0 {
            changes.push(change);
        }
    }

    /// Takes the changes, in order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = BlockChange> {
        self.0.iter_mut().flat_map(|changes| changes.drain(..))
    }
}
