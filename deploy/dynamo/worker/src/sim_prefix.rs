//! The prefix cache of a simulated engine: tokens of requests and of blocks.

use std::hash::{DefaultHasher, Hash, Hasher};

use trail_runtime::engine::{BlockHash, BlockSink, StoredBlock};
use trail_scheduler::{BLOCK_TOKENS, BlockChange, RequestIdx, Scheduler};

const BLOCK: usize = BLOCK_TOKENS as usize;

/// Tokens of a request, whose full blocks are hashed one after the other.
#[derive(Default)]
pub struct Sequence {
    tokens: Vec<u32>,
    /// Blocks with a hash, and the last of these.
    hashed: usize,
    last: u128,
    /// False for a request that shares no block.
    shares: bool,
}

impl Sequence {
    /// The tokens of a request; none of its blocks is hashed yet.
    pub fn new(tokens: Vec<u32>, shares: bool) -> Sequence {
        Sequence { tokens, shares, ..Sequence::default() }
    }

    /// Appends a token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Gives the scheduler the hashes of the blocks that are full by now.
    pub fn hash_blocks(&mut self, idx: RequestIdx, scheduler: &mut Scheduler) {
        while self.shares
            && let Some(block) = self.tokens[self.hashed * BLOCK..].first_chunk::<BLOCK>()
        {
            let mut hasher = DefaultHasher::new();
            (self.last, block).hash(&mut hasher);
            self.last = hasher.finish().into();
            self.hashed += 1;
            scheduler.push_block_hash(idx, BlockHash(self.last));
        }
    }
}

/// Tokens of the KV blocks, and where their changes go.
pub struct Blocks {
    tokens: Vec<[u32; BLOCK]>,
    sink: Box<dyn BlockSink>,
}

impl Blocks {
    /// The blocks of `scheduler`, which records their changes from now on.
    pub fn new(scheduler: &mut Scheduler, sink: Box<dyn BlockSink>) -> Blocks {
        scheduler.record_block_changes();
        Blocks { tokens: vec![[0; BLOCK]; scheduler.config().num_blocks as usize], sink }
    }

    /// Reports the changes of the last plan and of what followed it.
    pub fn report(&mut self, scheduler: &mut Scheduler) {
        let mut any = false;
        for change in scheduler.take_block_changes() {
            any = true;
            match change {
                BlockChange::Known { hash, parent, block } => {
                    let tokens = &self.tokens[block as usize];
                    self.sink.stored(StoredBlock { hash, parent, tokens });
                }
                BlockChange::Forgotten { hash } => self.sink.removed(hash),
            }
        }
        if any {
            self.sink.flush();
        }
    }

    /// Records the tokens of the blocks that the rows `start..end` of a request fill.
    pub fn fill(&mut self, (start, end): (u32, u32), sequence: &Sequence, table: &[u32]) {
        let (first, end) = (start as usize / BLOCK, end as usize / BLOCK);
        for (at, &block) in table.iter().enumerate().take(end).skip(first) {
            let tokens = sequence.tokens[at * BLOCK..].first_chunk();
            self.tokens[block as usize] = *tokens.expect("computed tokens are known");
        }
    }
}
