//! Names of full KV blocks, by which requests share them.

use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};
use trail_scheduler::BlockName;

use crate::backend::BLOCK_TOKENS;

/// Gives the full blocks of a sequence their names: 128 bits of a SHA-256 over the name before, the
/// block's tokens and a key of this engine. So a name means all tokens up to the end of its
/// block and for what the sequence is salted with, and no client can make two sequences of one
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
        self.name(0, |hash| hash.update(salt))
    }

    /// Name of the block of `tokens` after the one called `before`.
    pub(super) fn next(&self, before: BlockName, tokens: &[u32]) -> BlockName {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS);
        self.name(1, |hash| {
            hash.update(before.0.to_le_bytes());
            hash.update(bytemuck::cast_slice::<u32, u8>(tokens));
        })
    }

    /// `kind` keeps salts and blocks apart.
    fn name(&self, kind: u8, content: impl FnOnce(&mut Sha256)) -> BlockName {
        let mut hash = Sha256::new();
        hash.update(bytemuck::cast_slice::<u64, u8>(&self.key));
        hash.update([kind]);
        content(&mut hash);
        let digest = hash.finalize();
        let (name, _) = digest.split_first_chunk().expect("32 bytes");
        BlockName(u128::from_le_bytes(*name) & self.mask)
    }
}

/// Names of a request's blocks, as far as its tokens are known.
#[derive(Default)]
pub(super) struct SequenceNames {
    /// Name of the empty sequence under its salt.
    root: BlockName,
    /// Of the blocks of its prompt, until the scheduler has them.
    prompt: Vec<BlockName>,
    last: BlockName,
    /// Blocks with a name.
    count: usize,
}

impl SequenceNames {
    /// Names of the full blocks of `prompt`, under `salt`.
    pub(super) fn new(namer: &BlockNamer, salt: &[u8], prompt: &[u32]) -> SequenceNames {
        let root = namer.root(salt);
        let mut names = SequenceNames { root, last: root, ..SequenceNames::default() };
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

    /// Name of the empty sequence under the request's salt.
    pub(super) fn root(&self) -> BlockName {
        self.root
    }

    /// Takes the names of the prompt's blocks.
    pub(super) fn take_prompt(&mut self) -> Vec<BlockName> {
        std::mem::take(&mut self.prompt)
    }
}

/// The content of each full KV block, by which a block found by name is compared with the request
/// that found it.
pub(super) struct BlockContents(Vec<Content>);

#[derive(Clone, Copy, Default)]
struct Content {
    tokens: [u32; BLOCK_TOKENS],
    /// The block before it, and how often that had been filled then; `None` for a first block.
    before: Option<(u32, u64)>,
    /// Of a first block: the root of its sequence, thus the salt.
    root: BlockName,
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
        root: BlockName,
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

    /// True if the first `count` of `blocks` have the first tokens of a sequence, and were filled
    /// one after the other: then their KV is that of the sequence.
    pub(super) fn have(
        &self,
        count: usize,
        root: BlockName,
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

    /// `have` compares what a block follows on, too: its KV depends on that.
    #[test]
    fn blocks_of_another_sequence_are_refused() {
        let (root, other_root) = (BlockName(1), BlockName(2));
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
        assert!(!have(&contents, 2, root, &[2, 0]));
    }
}
