//! Hashes of full KV blocks, by which requests share them.

use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};
use trail_scheduler::BlockHash;

use crate::backend::BLOCK_TOKENS;

/// Hashes the full blocks of a sequence: 128 bits of a SHA-256 over the hash before, the block's
/// tokens and a key of this engine. So a hash depends on all tokens up to the end of its block and
/// on the salt, and no client can make two sequences of one hash.
#[derive(Clone)]
pub(super) struct BlockHasher {
    key: [u64; 4],
    /// Bits of a hash that are used: fewer in tests, so that hashes collide.
    mask: u128,
}

impl BlockHasher {
    pub(super) fn new() -> BlockHasher {
        // The standard library keys every `RandomState` from the system's randomness.
        BlockHasher { key: [0; 4].map(|_: u64| RandomState::new().hash_one(0)), mask: u128::MAX }
    }

    /// Hashes of few bits.
    #[cfg(test)]
    pub(super) fn colliding() -> BlockHasher {
        BlockHasher { mask: 1, ..BlockHasher::new() }
    }

    /// Hash of the empty sequence under `salt`: sequences of two salts share no block.
    pub(super) fn root(&self, salt: &[u8]) -> BlockHash {
        self.hash(0, |sha| sha.update(salt))
    }

    /// Hash of the block of `tokens` after the one called `before`.
    pub(super) fn next(&self, before: BlockHash, tokens: &[u32]) -> BlockHash {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS);
        self.hash(1, |sha| {
            sha.update(before.0.to_le_bytes());
            sha.update(bytemuck::cast_slice::<u32, u8>(tokens));
        })
    }

    /// `kind` keeps salts and blocks apart.
    fn hash(&self, kind: u8, content: impl FnOnce(&mut Sha256)) -> BlockHash {
        let mut sha = Sha256::new();
        sha.update(bytemuck::cast_slice::<u64, u8>(&self.key));
        sha.update([kind]);
        content(&mut sha);
        let digest = sha.finalize();
        let (hash, _) = digest.split_first_chunk().expect("32 bytes");
        BlockHash(u128::from_le_bytes(*hash) & self.mask)
    }
}

/// Hashes of a request's blocks, as far as its tokens are known.
#[derive(Default)]
pub(super) struct SequenceHashes {
    /// Hash of the empty sequence under its salt.
    root: BlockHash,
    /// Of the blocks of its prompt, until the scheduler has them.
    prompt: Vec<BlockHash>,
    last: BlockHash,
    /// Blocks with a hash.
    count: usize,
}

impl SequenceHashes {
    /// Hashes of the full blocks of `prompt`, under `salt`.
    pub(super) fn new(hasher: &BlockHasher, salt: &[u8], prompt: &[u32]) -> SequenceHashes {
        let root = hasher.root(salt);
        let mut hashes = SequenceHashes { root, last: root, ..SequenceHashes::default() };
        hashes.prompt.reserve_exact(prompt.len() / BLOCK_TOKENS);
        while let Some(hash) = hashes.next(hasher, prompt) {
            hashes.prompt.push(hash);
        }
        hashes
    }

    /// The hash of the next block, if `tokens`, those of the request so far, fill it.
    pub(super) fn next(&mut self, hasher: &BlockHasher, tokens: &[u32]) -> Option<BlockHash> {
        let first = self.count * BLOCK_TOKENS;
        let block = tokens.get(first..first + BLOCK_TOKENS)?;
        self.last = hasher.next(self.last, block);
        self.count += 1;
        Some(self.last)
    }

    /// Hash of the empty sequence under the request's salt.
    pub(super) fn root(&self) -> BlockHash {
        self.root
    }

    /// Takes the hashes of the prompt's blocks.
    pub(super) fn take_prompt(&mut self) -> Vec<BlockHash> {
        std::mem::take(&mut self.prompt)
    }
}

/// The content of each full KV block, by which a block found by hash is compared with the request
/// that found it.
pub(super) struct BlockContents(Vec<Content>);

#[derive(Clone, Copy, Default)]
struct Content {
    tokens: [u32; BLOCK_TOKENS],
    /// The block before it, and how often that had been filled then; `None` for a first block.
    before: Option<(u32, u64)>,
    /// Of a first block: the root of its sequence, thus the salt.
    root: BlockHash,
    /// Times that the block was filled.
    fills: u64,
}

impl BlockContents {
    pub(super) fn new(num_blocks: usize) -> BlockContents {
        BlockContents(vec![Content::default(); num_blocks])
    }

    /// Records the content of the blocks that the positions `start..end` of a sequence fill:
    /// `tokens` and `blocks` are all of the request's, `root` is that of its salt.
    pub(super) fn fill(
        &mut self,
        (start, end): (usize, usize),
        root: BlockHash,
        tokens: &[u32],
        blocks: &[u32],
    ) {
        for at in start / BLOCK_TOKENS..end / BLOCK_TOKENS {
            let before = self.before(at, blocks);
            let content = &mut self.0[blocks[at] as usize];
            content.tokens.copy_from_slice(&tokens[at * BLOCK_TOKENS..][..BLOCK_TOKENS]);
            (content.before, content.root) = (before, root);
            content.fills += 1;
        }
    }

    /// Lets `blocks` be those of no sequence: their KV may be damaged.
    pub(super) fn spoil(&mut self, blocks: &[u32]) {
        for &block in blocks {
            let content = &mut self.0[block as usize];
            content.tokens.fill(u32::MAX);
            content.fills += 1;
        }
    }

    /// True if the first `count` of `blocks` have the first tokens of a sequence, and were filled
    /// one after the other: then their KV is that of the sequence.
    pub(super) fn have(
        &self,
        count: usize,
        root: BlockHash,
        tokens: &[u32],
        blocks: &[u32],
    ) -> bool {
        let pairs = tokens.chunks_exact(BLOCK_TOKENS).zip(blocks).take(count);
        pairs.enumerate().all(|(at, (tokens, &block))| {
            let content = &self.0[block as usize];
            let follows = content.before == self.before(at, blocks);
            content.tokens == tokens && follows && (at > 0 || content.root == root)
        })
    }

    fn before(&self, at: usize, blocks: &[u32]) -> Option<(u32, u64)> {
        let before = blocks[at.checked_sub(1)?];
        Some((before, self.0[before as usize].fills))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(hasher: &BlockHasher, salt: &[u8], tokens: &[u32]) -> Vec<BlockHash> {
        SequenceHashes::new(hasher, salt, tokens).take_prompt()
    }

    #[test]
    fn a_name_stands_for_all_tokens_before_its_end_and_for_the_salt() {
        let hasher = BlockHasher::new();
        let tokens: Vec<u32> = (0..40).collect();
        let whole = hashes(&hasher, b"", &tokens);
        assert_eq!(whole.len(), 2, "the third block is not full");
        assert_eq!(hashes(&hasher, b"", &tokens[..32]), whole);
        for (salt, changed) in [(&b"salt"[..], None), (b"", Some(0)), (b"", Some(20))] {
            let mut other = tokens.clone();
            changed.into_iter().for_each(|at: usize| other[at] += 1);
            let other = hashes(&hasher, salt, &other);
            assert_eq!(other[0] == whole[0], changed == Some(20));
            assert_ne!(other[1], whole[1]);
        }
        assert_ne!(hashes(&BlockHasher::new(), b"", &tokens), whole, "another key");
    }

    #[test]
    fn outputs_are_named_as_prompts_are() {
        let hasher = BlockHasher::new();
        let tokens: Vec<u32> = (0..64).collect();
        let mut sequence = SequenceHashes::new(&hasher, b"", &tokens[..20]);
        let mut all = sequence.take_prompt();
        for end in 21..=64 {
            all.extend(sequence.next(&hasher, &tokens[..end]));
        }
        assert_eq!(all, hashes(&hasher, b"", &tokens));
    }

    /// `have` compares what a block follows on, too: its KV depends on that.
    #[test]
    fn blocks_of_another_sequence_are_refused() {
        let (root, other_root) = (BlockHash(1), BlockHash(2));
        let tokens: Vec<u32> = (0..48).collect();
        let mut contents = BlockContents::new(6);
        contents.fill((0, 20), root, &tokens, &[2, 0]);
        contents.fill((20, 33), root, &tokens, &[2, 0, 1]);
        let have = |contents: &BlockContents, count, root, blocks: &[u32]| {
            contents.have(count, root, &tokens, blocks)
        };
        assert!(have(&contents, 2, root, &[2, 0, 1]) && !have(&contents, 2, root, &[0, 2]));
        assert!(!have(&contents, 3, root, &[2, 0, 1]), "the third was never full");
        assert!(!have(&contents, 1, other_root, &[2, 0, 1]), "another salt");
        // Equal tokens in the second block, after other ones.
        let other: Vec<u32> = (100..116).chain(16..32).collect();
        contents.fill((0, 32), root, &other, &[3, 4]);
        assert!(!have(&contents, 2, root, &[2, 4]));
        // Filled again, a block is no longer the one that others followed on.
        contents.fill((0, 16), root, &tokens, &[2]);
        assert!(!have(&contents, 2, root, &[2, 0]) && have(&contents, 1, root, &[2]));
        contents.spoil(&[2]);
        assert!(!have(&contents, 1, root, &[2]));
    }
}
