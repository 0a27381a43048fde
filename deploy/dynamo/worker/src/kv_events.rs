//! The worker's KV events: the blocks that requests find here, for the routers on Dynamo's event
//! plane.

use std::sync::{Arc, OnceLock};

use dynamo_backend_common::{KvEventPublisher, KvEventSource};
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, compute_block_hash_for_seq,
};
use trail_runtime::engine::{BlockHash, BlockSink, StoredBlock};
use trail_scheduler::BLOCK_TOKENS;

/// The way from the engine's blocks to Dynamo's publisher, which is there before the first request.
#[derive(Clone, Default)]
pub struct KvEvents(Arc<OnceLock<Arc<KvEventPublisher>>>);

impl KvEvents {
    /// The sink of an engine.
    pub fn sink(&self) -> Box<dyn BlockSink> {
        Box::new(Sink { events: self.clone(), step: Vec::new() })
    }

    /// The source that asks Dynamo for the publisher.
    pub fn source(&self) -> KvEventSource {
        let events = self.clone();
        let on_ready = Box::new(move |publisher| {
            let _ = events.0.set(publisher);
            Ok(())
        });
        KvEventSource::Push { on_ready, dp_rank: 0 }
    }
}

/// Publishes each step's changes together.
struct Sink {
    events: KvEvents,
    step: Vec<KvCacheEventData>,
}

impl BlockSink for Sink {
    fn stored(&mut self, block: StoredBlock<'_>) {
        self.step.push(KvCacheEventData::Stored(store(&block)));
    }

    fn removed(&mut self, hash: BlockHash) {
        let block_hashes = vec![sequence_hash(hash)];
        self.step.push(KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }));
    }

    fn flush(&mut self) {
        let data = self.step.drain(..);
        let Some(publisher) = self.events.0.get() else { return };
        let event = |data| {
            let event_id = publisher.next_event_id();
            KvCacheEvent { event_id, data, dp_rank: 0 }
        };
        // Fails when Dynamo has shut its publisher down: the worker has left the routers by then.
        let _ = publisher.publish_batch(data.map(event).collect());
    }
}

/// Dynamo's event of a block. Routers look for a request's blocks by the hash of their own tokens,
/// one after the other; the engine's hash is the block's name in later events.
fn store(block: &StoredBlock<'_>) -> KvCacheStoreData {
    let options = BlockHashOptions::default();
    let tokens_hash = compute_block_hash_for_seq(block.tokens, BLOCK_TOKENS, options);
    let stored = |&tokens_hash: &_| KvCacheStoredBlockData {
        block_hash: sequence_hash(block.hash),
        tokens_hash,
        mm_extra_info: None,
    };
    KvCacheStoreData {
        parent_hash: block.parent.map(sequence_hash),
        start_position: None,
        blocks: tokens_hash.iter().map(stored).collect(),
    }
}

/// Half of the engine's hash, whose bits are all random.
fn sequence_hash(hash: BlockHash) -> ExternalSequenceBlockHash {
    ExternalSequenceBlockHash(hash.0 as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_block_has_the_hash_that_routers_look_for() {
        let prompt: Vec<u32> = (0..40).collect();
        let wanted = compute_block_hash_for_seq(&prompt, BLOCK_TOKENS, BlockHashOptions::default());
        let [first, second] = [BlockHash(7 << 64 | 1), BlockHash(7 << 64 | 2)];
        let block =
            |hash, parent, from| StoredBlock { hash, parent, tokens: &prompt[from..][..16] };
        let stored = [block(first, None, 0), block(second, Some(first), 16)].map(|of| store(&of));
        let hashes = stored.each_ref().map(|of| of.blocks[0].tokens_hash);
        assert_eq!(hashes[..], wanted[..]);
        assert_eq!((stored[0].blocks.len(), stored[0].parent_hash), (1, None));
        assert_eq!(stored[1].parent_hash, Some(stored[0].blocks[0].block_hash));
        assert_ne!(stored[0].blocks[0].block_hash, stored[1].blocks[0].block_hash);
    }
}
