//! Hashes of full blocks by their content, and the blocks that have them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde::{Deserialize, Serialize};

use super::BlockId;
use crate::request::RequestIdx;

/// Hash of a full KV block: the caller makes it depend on all tokens up to the end of the block, on
/// the model, and on whatever else must not be shared, so that equal hashes mean equal KV.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct BlockHash(#[serde(with = "hex")] pub u128);

/// Folds a block hash to the word that a map needs.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("a hash is a number");
    }

    fn write_u128(&mut self, hash: u128) {
        // Not the hash as it is: those of tests and traces are small numbers.
        let high = ((hash >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (hash as u64).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ high.rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The hashes of each request's full blocks, and the block of each hash.
pub(super) struct HashIndex {
    /// `[request][stride]`. Zeroed memory costs no page until an index is used.
    of_requests: Vec<u128>,
    /// `[request]`: hashes given, and those whose blocks were looked at by `publish`.
    given: Vec<[u32; 2]>,
    stride: usize,
    /// `[block]`; `None` for a block without a hash.
    of_blocks: Vec<Option<BlockHash>>,
    blocks: HashMap<BlockHash, BlockId, BuildHasherDefault<Fold>>,
}

impl HashIndex {
    pub(super) fn new(num_blocks: u32, max_requests: u32, stride: usize) -> HashIndex {
        HashIndex {
            of_requests: vec![0; stride * max_requests as usize],
            given: vec![[0; 2]; max_requests as usize],
            stride,
            of_blocks: vec![None; num_blocks as usize],
            // At half of its room a map that loses as many entries as it gains allocates nothing.
            blocks: HashMap::with_capacity_and_hasher(2 * num_blocks as usize, Default::default()),
        }
    }
}

impl HashIndex {
    /// The hashes of the request's full blocks, in token order.
    pub(super) fn of(&self, idx: RequestIdx) -> &[u128] {
        let first = idx.index() * self.stride;
        &self.of_requests[first..first + self.given[idx.index()][0] as usize]
    }

    /// Appends a hash, and returns its place; one beyond the longest table is of no use.
    pub(super) fn push(&mut self, idx: RequestIdx, hash: BlockHash) -> Option<u32> {
        let given = &mut self.given[idx.index()][0];
        let place = *given;
        let at = (place as usize) < self.stride;
        at.then(|| {
            self.of_requests[idx.index() * self.stride + place as usize] = hash.0;
            *given += 1;
            place
        })
    }

    /// Forgets the hashes of a request.
    pub(super) fn clear(&mut self, idx: RequestIdx) {
        self.given[idx.index()] = [0; 2];
    }

    /// The block that is known by `hash`.
    pub(super) fn find(&self, hash: u128) -> Option<BlockId> {
        self.blocks.get(&BlockHash(hash)).copied()
    }

    pub(super) fn has(&self, block: BlockId) -> bool {
        self.of_blocks[block as usize].is_some()
    }

    /// Gives the request's full blocks their hashes, up to the first that another block has. So the
    /// block before a known one is known too, or was forgotten before it. `table`: the blocks whose
    /// tokens all have KV.
    pub(super) fn publish(&mut self, idx: RequestIdx, table: &[BlockId]) {
        let [given, published] = self.given[idx.index()];
        let end = (given as usize).min(table.len());
        for (at, &block) in table.iter().enumerate().take(end).skip(published as usize) {
            let hash = BlockHash(self.of_requests[idx.index() * self.stride + at]);
            let known = *self.blocks.entry(hash).or_insert(block);
            if known != block {
                // Another block has the hash; those after this one would follow on it.
                break;
            }
            self.of_blocks[block as usize] = Some(hash);
            self.given[idx.index()][1] = at as u32 + 1;
        }
    }

    /// Lets the request's blocks from `kept` on be published again: it no longer holds them.
    pub(super) fn unpublish(&mut self, idx: RequestIdx, kept: u32) {
        let published = &mut self.given[idx.index()][1];
        *published = kept.min(*published);
    }

    /// Forgets the content of `block`, which will be written.
    pub(super) fn forget(&mut self, block: BlockId) {
        let hash = self.of_blocks[block as usize].take().expect("it has a hash");
        self.blocks.remove(&hash);
    }
}

/// Hexadecimal digits: numbers of 128 bits are no numbers of JSON.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(hash: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{hash:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hash = digits.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        hash.ok_or_else(|| D::Error::custom("a hash of a block has 32 hexadecimal digits"))
    }
}
