//! Where the heads of a fresh projection go: queries to a buffer, keys and values to the KV pool.

use crate::model::ModelConfig;

use super::kv::KvShape;
use super::rope::RopeTable;
use super::shared::SharedMut;

/// A head of the q, k and v projections, by its index among its kind.
#[derive(Clone, Copy)]
pub(super) enum Head {
    Query(usize),
    Key(usize),
    Value(usize),
}

impl Head {
    /// Queries first, then keys, then values.
    pub(super) fn of_item(item: usize, config: &ModelConfig) -> Self {
        let ModelConfig { num_heads, num_kv_heads, .. } = *config;
        if item < num_heads {
            Head::Query(item)
        } else if item < num_heads + num_kv_heads {
            Head::Key(item - num_heads)
        } else {
            Head::Value(item - num_heads - num_kv_heads)
        }
    }
}

/// The places of all heads of one layer.
pub(super) struct HeadPlaces<'a> {
    pub(super) layer: usize,
    pub(super) config: &'a ModelConfig,
    pub(super) rope: &'a RopeTable,
    /// `[rows]`
    pub(super) positions: &'a [u32],
    /// Where in the KV pool each row's token lies `[rows]`.
    pub(super) slots: &'a [u32],
    pub(super) shape: KvShape,
    /// `[rows][num_heads][head_dim]`
    pub(super) queries: SharedMut<'a, f32>,
    /// The KV pool.
    pub(super) kv: SharedMut<'a, f32>,
}

impl HeadPlaces<'_> {
    /// Rotates what is to be rotated of `values` (`[head_dim]`), and puts it in its place. Queries
    /// are scaled by 1 / sqrt(head_dim) here, so that scores need not be.
    ///
    /// # Safety
    ///
    /// Nobody else may access the same head of the same row meanwhile.
    pub(super) unsafe fn put(&self, head: Head, row: usize, values: &[f32]) {
        let ModelConfig { num_heads, head_dim, .. } = *self.config;
        let position = self.positions[row] as usize;
        let in_pool = |plane| {
            let first = self.shape.token(self.slots[row] as usize, plane);
            // SAFETY: the caller's; tokens have slots of their own.
            unsafe { self.kv.part(first..first + head_dim) }
        };
        match head {
            Head::Query(index) => {
                let first = (row * num_heads + index) * head_dim;
                // SAFETY: the caller's.
                let out = unsafe { self.queries.part(first..first + head_dim) };
                self.rope.rotate(values, position, 1.0 / (head_dim as f32).sqrt(), out);
            }
            Head::Key(index) => {
                let out = in_pool(self.shape.keys(self.layer, index));
                self.rope.rotate(values, position, 1.0, out);
            }
            Head::Value(index) => {
                in_pool(self.shape.values(self.layer, index)).copy_from_slice(values);
            }
        }
    }
}
