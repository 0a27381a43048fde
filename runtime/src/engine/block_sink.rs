//! The blocks of the prefix cache, for an embedder that sends requests where theirs are.

use trail_scheduler::{BlockChange, BlockHash, LoggedScheduler};

use super::block_hashes::BlockHasher;
use super::pool_contents::BlockContents;

/// A full KV block that requests can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlock<'a> {
    /// Its hash, which depends on all tokens up to its end and on this engine.
    pub hash: BlockHash,
    /// Hash of the block before it; `None` for the first of a sequence.
    pub parent: Option<BlockHash>,
    /// Its own tokens: a block's, [`trail_scheduler::BLOCK_TOKENS`].
    pub tokens: &'a [u32],
}

/// Receives the blocks of the device that requests can find in the prefix cache, in order. All
/// methods are called on the engine's thread, which waits for them.
pub trait BlockSink: Send {
    /// A block can be found. Not called for requests with a `cache_salt` or an adapter, whose
    /// blocks are not known by their tokens alone.
    fn stored(&mut self, block: StoredBlock<'_>);

    /// A block cannot be found any more: one that was stored, or one that was not reported.
    fn removed(&mut self, hash: BlockHash);

    /// The changes since the last call are complete. Not called if there were none.
    fn flush(&mut self) {}
}

/// Passes the scheduler's changes on to a sink.
pub(super) struct BlockReporter {
    sink: Box<dyn BlockSink>,
    /// The root of sequences without a salt and an adapter.
    unsalted: BlockHash,
}

impl BlockReporter {
    /// A reporter of the blocks of `scheduler`, which records them from now on.
    pub(super) fn new(
        sink: Box<dyn BlockSink>,
        hasher: &BlockHasher,
        scheduler: &mut LoggedScheduler,
    ) -> BlockReporter {
        scheduler.record_block_changes();
        BlockReporter { sink, unsalted: hasher.root(&[], None) }
    }

    /// Reports `changes`; `contents` has not changed since.
    pub(super) fn report(
        &mut self,
        changes: impl Iterator<Item = BlockChange>,
        contents: &BlockContents,
    ) {
        let mut any = false;
        for change in changes {
            any = true;
            match change {
                BlockChange::Known { hash, parent, block } => {
                    let (root, tokens) = contents.of(block);
                    if root == self.unsalted {
                        self.sink.stored(StoredBlock { hash, parent, tokens });
                    }
                }
                BlockChange::Forgotten { hash } => self.sink.removed(hash),
            }
        }
        if any {
            self.sink.flush();
        }
    }
}
