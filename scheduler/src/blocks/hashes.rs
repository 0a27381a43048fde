//! Hashes of full blocks by their content, and the blocks that have them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

#[cfg(feature = "log")]
use serde::{Deserialize, Serialize};

use super::BlockId;
use super::changes::{BlockChange, BlockChanges};
use crate::request::RequestIdx;

/// Hash of a full KV block: the caller makes it depend on all tokens up to the end of the block, on
/// the model, and on whatever else must not be shared, so that equal hashes mean equal KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize))]
pub struct BlockHash(#[cfg_attr(feature = "log", serde(with = "hex"))] pub u128);

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

/// The hashes of each request's full blocks.
pub(crate) struct RequestHashes {
    /// `[request][stride]`. Zeroed memory costs no page until an index is used.
    hashes: Vec<u128>,
    /// `[request]`: hashes given.
    given: Vec<u32>,
    stride: usize,
}

impl RequestHashes {
    /// Up to `stride` hashes a request.
    pub(crate) fn new(max_requests: u32, stride: u32) -> RequestHashes {
        let stride = stride as usize;
        let (hashes, given) =
            (vec![0; stride * max_requests as usize], vec![0; max_requests as usize]);
        RequestHashes { hashes, given, stride }
    }

    /// The hashes of the request's first full blocks, `max` at the most, in token order.
    pub(crate) fn first(&self, idx: RequestIdx, max: u32) -> &[u128] {
        let first = idx.index() * self.stride;
        &self.hashes[first..first + self.given[idx.index()].min(max) as usize]
    }

    /// The hash of the request's block `block`, if it has one.
    pub(crate) fn at(&self, idx: RequestIdx, block: u32) -> Option<BlockHash> {
        self.first(idx, u32::MAX).get(block as usize).map(|&hash| BlockHash(hash))
    }

    /// Appends a hash, and returns its place; one beyond the longest table is of no use.
    pub(crate) fn push(&mut self, idx: RequestIdx, hash: BlockHash) -> Option<u32> {
        let given = &mut self.given[idx.index()];
        let place = *given;
        ((place as usize) < self.stride).then(|| {
            self.hashes[idx.index() * self.stride + place as usize] = hash.0;
            *given += 1;
            place
        })
    }

    /// Forgets the hashes of a request.
    pub(crate) fn clear(&mut self, idx: RequestIdx) {
        self.given[idx.index()] = 0;
    }
}

/// The block of each hash.
pub(super) struct HashIndex {
    /// `[request]`: blocks that `publish` has looked at.
    published: Vec<u32>,
    /// `[block]`; `None` for a block without a hash.
    of_blocks: Vec<Option<BlockHash>>,
    blocks: HashMap<BlockHash, BlockId, BuildHasherDefault<Fold>>,
    changes: BlockChanges,
}

impl HashIndex {
    pub(super) fn new(num_blocks: u32, max_requests: u32) -> HashIndex {
        HashIndex {
            published: vec![0; max_requests as usize],
            of_blocks: vec![None; num_blocks as usize],
            // At half of its room a map that loses as many entries as it gains allocates nothing.
            blocks: HashMap::with_capacity_and_hasher(2 * num_blocks as usize, Default::default()),
            changes: BlockChanges::default(),
        }
    }
}

impl HashIndex {
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
    pub(super) fn publish(&mut self, idx: RequestIdx, hashes: &[u128], table: &[BlockId]) {
        let published = &mut self.published[idx.index()];
        let blocks = hashes.iter().zip(table).enumerate().skip(*published as usize);
        for (at, (&hash, &block)) in blocks {
            let hash = BlockHash(hash);
            match self.blocks.entry(hash) {
                // Another block has the hash; those after this one would follow on it.
                Entry::Occupied(known) if *known.get() != block => break,
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => {
                    place.insert(block);
                    self.of_blocks[block as usize] = Some(hash);
                    let parent = at.checked_sub(1).map(|before| BlockHash(hashes[before]));
                    self.changes.push(BlockChange::Known { hash, parent, block });
                }
            }
            *published += 1;
        }
    }

    /// Lets the request's blocks from `kept` on be published again: it no longer holds them.
    pub(super) fn unpublish(&mut self, idx: RequestIdx, kept: u32) {
        let published = &mut self.published[idx.index()];
        *published = kept.min(*published);
    }

    /// Forgets the content of `block`, which will be written.
    pub(super) fn forget(&mut self, block: BlockId) {
        let hash = self.of_blocks[block as usize].take().expect("it has a hash");
        self.blocks.remove(&hash);
        self.changes.push(BlockChange::Forgotten { hash });
    }

    /// Records the changes of the known blocks from now on.
    pub(super) fn record_changes(&mut self) {
        self.changes.record(self.of_blocks.len());
    }

    /// Takes the changes since the last call, in order.
    pub(super) fn take_changes(&mut self) -> impl Iterator<Item = BlockChange> {
        self.changes.take()
    }
}

/// Hexadecimal digits: numbers of 128 bits are no numbers of JSON.
#[cfg(feature = "log")]
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
