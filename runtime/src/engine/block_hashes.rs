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

    /// Hash of the empty sequence under `salt`, with the adapter of number `adapter` if any:
    /// sequences of two salts or adapters share no block.
    pub(super) fn root(&self, salt: &[u8], adapter: Option<u64>) -> BlockHash {
        match adapter {
            None => self.hash(0, |sha| sha.update(salt)),
            Some(id) => self.hash(2, |sha| {
                sha.update(id.to_le_bytes());
                sha.update(salt);
            }),
        }
    }

    /// Hash of the block of `tokens` after the one called `before`.
    pub(super) fn next(&self, before: BlockHash, tokens: &[u32]) -> BlockHash {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS);
        self.hash(1, |sha| {
            sha.update(before.0.to_le_bytes());
            sha.update(bytemuck::cast_slice::<u32, u8>(tokens));
        })
    }

    /// `kind` keeps salts, blocks, and salts with an adapter apart.
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
    /// Hashes of the full blocks of `prompt` after the empty sequence called `root`.
    pub(super) fn new(hasher: &BlockHasher, root: BlockHash, prompt: &[u32]) -> SequenceHashes {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(hasher: &BlockHasher, salt: &[u8], tokens: &[u32]) -> Vec<BlockHash> {
        SequenceHashes::new(hasher, hasher.root(salt, None), tokens).take_prompt()
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
        let mut sequence = SequenceHashes::new(&hasher, hasher.root(b"", None), &tokens[..20]);
        let mut all = sequence.take_prompt();
        for end in 21..=64 {
            all.extend(sequence.next(&hasher, &tokens[..end]));
        }
        assert_eq!(all, hashes(&hasher, b"", &tokens));
    }
}
