//! Names of full KV blocks, by which requests share them.

use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};
use trail_scheduler::BlockName;

use crate::backend::BLOCK_TOKENS;

/// Gives the full blocks of a sequence their names: 128 bits of a SHA-256 over the name before, the
/// block's tokens and a key of this engine. So a name stands for all tokens up to the end of its
/// block and for what the sequence is salted with, and nobody outside can make two sequences of one
/// name.
#[derive(Clone)]
pub(super) struct BlockNamer {
    key: [u64; 4],
    /// Bits of a name that are used: fewer in tests, so that names collide.
    mask: u128,
}

impl BlockNamer {
    pub(super) fn new() -> BlockNamer {
        // The standard library keys every `RandomState` from the system's randomness.
        BlockNamer { key: [0; 4].map(|_: u64| RandomState::new().hash_one(0)), mask: u128::MAX }
    }

    /// Names of few bits.
    #[cfg(test)]
    pub(super) fn colliding() -> BlockNamer {
        BlockNamer { mask: 1, ..BlockNamer::new() }
    }

    /// Name of the empty sequence under `salt`: sequences of two salts share no block.
    pub(super) fn root(&self, salt: &[u8]) -> BlockName {
        self.name(|hash| hash.update(salt))
    }

    /// Name of the block of `tokens` after the one called `before`.
    pub(super) fn next(&self, before: BlockName, tokens: &[u32]) -> BlockName {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS);
        self.name(|hash| {
            hash.update(before.0.to_le_bytes());
            hash.update(bytemuck::cast_slice::<u32, u8>(tokens));
        })
    }

    fn name(&self, content: impl FnOnce(&mut Sha256)) -> BlockName {
        let mut hash = Sha256::new();
        hash.update(bytemuck::cast_slice::<u64, u8>(&self.key));
        content(&mut hash);
        let digest = hash.finalize();
        let (name, _) = digest.split_first_chunk().expect("32 bytes");
        BlockName(u128::from_le_bytes(*name) & self.mask)
    }
}

/// Names of a request's blocks, as far as its tokens are known.
#[derive(Default)]
pub(super) struct SequenceNames {
    /// Of the blocks of its prompt, until the scheduler has them.
    prompt: Vec<BlockName>,
    last: BlockName,
    /// Blocks with a name.
    count: usize,
}

impl SequenceNames {
    /// Names of the full blocks of `prompt`, under `salt`.
    pub(super) fn new(namer: &BlockNamer, salt: &[u8], prompt: &[u32]) -> SequenceNames {
        let mut names = SequenceNames { last: namer.root(salt), ..SequenceNames::default() };
        names.prompt.reserve_exact(prompt.len() / BLOCK_TOKENS);
        while let Some(name) = names.next(namer, prompt) {
            names.prompt.push(name);
        }
        names
    }

    /// The name of the next block, if `tokens`, those of the request so far, fill it.
    pub(super) fn next(&mut self, namer: &BlockNamer, tokens: &[u32]) -> Option<BlockName> {
        let first = self.count * BLOCK_TOKENS;
        let block = tokens.get(first..first + BLOCK_TOKENS)?;
        self.last = namer.next(self.last, block);
        self.count += 1;
        Some(self.last)
    }

    /// Takes the names of the prompt's blocks.
    pub(super) fn take_prompt(&mut self) -> Vec<BlockName> {
        std::mem::take(&mut self.prompt)
    }
}

/// The tokens of each full KV block, by which a block found by name is compared with the request
/// that found it.
pub(super) struct BlockTokens(Vec<[u32; BLOCK_TOKENS]>);

impl BlockTokens {
    pub(super) fn new(num_blocks: usize) -> BlockTokens {
        BlockTokens(vec![[0; BLOCK_TOKENS]; num_blocks])
    }

    /// Records the tokens of the blocks that the positions `start..end` of a request fill: `tokens`
    /// and `blocks` are all of the request's.
    pub(super) fn fill(&mut self, start: usize, end: usize, tokens: &[u32], blocks: &[u32]) {
        for block in start / BLOCK_TOKENS..end / BLOCK_TOKENS {
            let tokens = &tokens[block * BLOCK_TOKENS..][..BLOCK_TOKENS];
            self.0[blocks[block] as usize].copy_from_slice(tokens);
        }
    }

    /// True if the first `count` of `blocks` have the first tokens of `tokens`.
    pub(super) fn have(&self, count: usize, tokens: &[u32], blocks: &[u32]) -> bool {
        let mut pairs = tokens.chunks_exact(BLOCK_TOKENS).zip(blocks).take(count);
        pairs.all(|(tokens, &block)| self.0[block as usize] == tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(namer: &BlockNamer, salt: &[u8], tokens: &[u32]) -> Vec<BlockName> {
        SequenceNames::new(namer, salt, tokens).take_prompt()
    }

    #[test]
    fn a_name_stands_for_all_tokens_before_its_end_and_for_the_salt() {
        let namer = BlockNamer::new();
        let tokens: Vec<u32> = (0..40).collect();
        let whole = names(&namer, b"", &tokens);
        assert_eq!(whole.len(), 2, "the third block is not full");
        assert_eq!(names(&namer, b"", &tokens[..32]), whole);
        for (salt, changed) in [(&b"salt"[..], None), (b"", Some(0)), (b"", Some(20))] {
            let mut other = tokens.clone();
            changed.into_iter().for_each(|at: usize| other[at] += 1);
            let other = names(&namer, salt, &other);
            assert_eq!(other[0] == whole[0], changed == Some(20));
            assert_ne!(other[1], whole[1]);
        }
        assert_ne!(names(&BlockNamer::new(), b"", &tokens), whole, "another key");
    }

    #[test]
    fn outputs_are_named_as_prompts_are() {
        let namer = BlockNamer::new();
        let tokens: Vec<u32> = (0..64).collect();
        let mut sequence = SequenceNames::new(&namer, b"", &tokens[..20]);
        let mut all = sequence.take_prompt();
        for end in 21..=64 {
            all.extend(sequence.next(&namer, &tokens[..end]));
        }
        assert_eq!(all, names(&namer, b"", &tokens));
    }

    #[test]
    fn blocks_of_other_tokens_are_told_apart() {
        let tokens: Vec<u32> = (0..48).collect();
        let mut blocks = BlockTokens::new(4);
        blocks.fill(0, 20, &tokens, &[2, 0]);
        blocks.fill(20, 33, &tokens, &[2, 0, 1]);
        assert!(blocks.have(2, &tokens, &[2, 0, 1]) && !blocks.have(2, &tokens, &[0, 2]));
        assert!(!blocks.have(3, &tokens, &[2, 0, 1]), "the third was never full");
    }
}
