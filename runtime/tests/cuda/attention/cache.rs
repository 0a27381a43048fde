//! A paged cache with requests in it, on both sides.

use half::bf16;
use trail_runtime::cuda::launch;
use trail_runtime::cuda::params::{PagedKv, TensorMap};
use trail_runtime::cuda::plan::attention::Heads;
use trail_test_support::cuda::{Address, Bench, Buffer, Chance};

pub(crate) const BLOCK_TOKENS: usize = 16;
/// Layers of the pool, and the one that is attended to.
const LAYERS: usize = 2;
const LAYER: usize = 1;
/// A block id that no kernel may follow.
const NO_BLOCK: i32 = 0x0fff_ffff;

/// Requests of given lengths, their blocks scattered over the pool. What no request has written is
/// not a number.
pub(crate) struct Cache {
    pub(crate) heads: Heads,
    pub(crate) window: Option<usize>,
    pool: Vec<bf16>,
    table: Vec<i32>,
    max_blocks: usize,
    block_stride: usize,
}

/// The device's copy.
pub(crate) struct DeviceCache {
    pool: Buffer,
    elements: usize,
    table: Buffer,
    max_blocks: usize,
    block_stride: usize,
    layer_offset: usize,
    window: Option<usize>,
}

impl Cache {
    /// `forgotten[batch_idx]` blocks at each request's begin are gone: no kernel may look there.
    pub(crate) fn new(
        chance: &mut Chance,
        heads: Heads,
        window: Option<usize>,
        lengths: &[usize],
        forgotten: &[usize],
    ) -> Cache {
        let block_stride = LAYERS * 2 * heads.kv_heads * BLOCK_TOKENS * heads.head_dim;
        let blocks_of = |length: &usize| length.div_ceil(BLOCK_TOKENS);
        let needed: usize = lengths.iter().map(blocks_of).sum();
        let max_blocks = lengths.iter().map(blocks_of).max().unwrap_or(0) + chance.below(3);
        let spare = 1 + chance.below(5);
        let mut free = chance.permutation(needed + spare);
        let mut cache = Cache {
            heads,
            window,
            pool: vec![bf16::NAN; free.len() * block_stride],
            table: vec![NO_BLOCK; lengths.len() * max_blocks],
            max_blocks,
            block_stride,
        };
        for (batch_idx, &length) in lengths.iter().enumerate() {
            for block in forgotten[batch_idx]..length.div_ceil(BLOCK_TOKENS) {
                cache.table[batch_idx * max_blocks + block] = free.pop().unwrap() as i32;
            }
            for token in forgotten[batch_idx] * BLOCK_TOKENS..length {
                cache.write(chance, batch_idx, token);
            }
        }
        cache
    }

    fn write(&mut self, chance: &mut Chance, batch_idx: usize, token: usize) {
        for kind in 0..2 {
            for kv_head in 0..self.heads.kv_heads {
                let at = self.place(batch_idx, token, kind, kv_head);
                let values = chance.bf16s(self.heads.head_dim, 2.0);
                self.pool[at..at + values.len()].copy_from_slice(&values);
            }
        }
    }

    fn layer_offset(&self) -> usize {
        LAYER * 2 * self.heads.kv_heads * BLOCK_TOKENS * self.heads.head_dim
    }

    fn place(&self, batch_idx: usize, token: usize, kind: usize, kv_head: usize) -> usize {
        let block = self.table[batch_idx * self.max_blocks + token / BLOCK_TOKENS] as usize;
        let tile = (kind * self.heads.kv_heads + kv_head) * BLOCK_TOKENS + token % BLOCK_TOKENS;
        block * self.block_stride + self.layer_offset() + tile * self.heads.head_dim
    }

    /// Keys (0) or values (1) of the tokens that a row at `position` attends to, oldest first.
    pub(crate) fn attended(
        &self,
        batch_idx: usize,
        position: usize,
        kind: usize,
        kv_head: usize,
    ) -> Vec<&[bf16]> {
        let oldest = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let row = |token| {
            &self.pool[self.place(batch_idx, token, kind, kv_head)..][..self.heads.head_dim]
        };
        (oldest..=position).map(row).collect()
    }

    pub(crate) fn upload(&self, bench: &Bench) -> DeviceCache {
        DeviceCache {
            pool: bench.input(&self.pool),
            elements: self.pool.len(),
            table: bench.input(&self.table),
            max_blocks: self.max_blocks,
            block_stride: self.block_stride,
            layer_offset: self.layer_offset(),
            window: self.window,
        }
    }
}

impl DeviceCache {
    /// How Hopper's copy engine reads it.
    pub(crate) fn map(&mut self, bench: &Bench, heads: Heads) -> TensorMap {
        launch::pool_map(self.pool.at(bench), self.elements, heads.head_dim).unwrap()
    }

    pub(crate) fn view(&mut self, bench: &Bench) -> PagedKv {
        PagedKv {
            pool: self.pool.at(bench),
            block_table: self.table.at(bench),
            block_stride: self.block_stride as i64,
            layer_offset: self.layer_offset as i64,
            max_blocks: self.max_blocks as i32,
            window: launch::window(self.window),
            ..PagedKv::default()
        }
    }
}
