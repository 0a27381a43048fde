//! Rotary position embedding in Hugging Face's layout: dimension i is paired with i + head_dim / 2.

use crate::model::{LayerRope, ModelConfig, RopeConfig};

/// Tables of a model's layers.
pub(crate) struct RopeTables {
    global: RopeTable,
    local: Option<RopeTable>,
}

impl RopeTables {
    /// Computes the tables of positions `0..max_context`.
    pub(crate) fn new(config: &ModelConfig, max_context: usize) -> Self {
        let table = |rope: &RopeConfig| RopeTable::new(rope, config.head_dim, max_context);
        RopeTables { global: table(&config.rope), local: config.local_rope.as_ref().map(table) }
    }

    /// The table of layers with `rope`; `None` for those without RoPE.
    pub(crate) fn of(&self, rope: LayerRope) -> Option<&RopeTable> {
        match rope {
            LayerRope::Global => Some(&self.global),
            LayerRope::Local => self.local.as_ref(),
            LayerRope::Absent => None,
        }
    }
}

/// Precomputed cosines and sines of every position.
pub(crate) struct RopeTable {
    /// `[max_context][cos | sin][half]`
    table: Vec<f32>,
    half: usize,
}

impl RopeTable {
    /// Computes the table of positions `0..max_context`.
    fn new(rope: &RopeConfig, head_dim: usize, max_context: usize) -> Self {
        let half = head_dim / 2;
        let frequencies = rope.inverse_frequencies(head_dim);
        let mut table = Vec::with_capacity(max_context * head_dim);
        for position in 0..max_context {
            let angles = frequencies.iter().map(|frequency| position as f64 * frequency);
            table.extend(angles.clone().map(|angle| angle.cos() as f32));
            table.extend(angles.map(|angle| angle.sin() as f32));
        }
        RopeTable { table, half }
    }

    /// Writes `head` (`[head_dim]`), rotated to `position` and multiplied by `scale`, to `out`.
    pub(crate) fn rotate(&self, head: &[f32], position: usize, scale: f32, out: &mut [f32]) {
        let (cos, sin) =
            self.table[position * 2 * self.half..][..2 * self.half].split_at(self.half);
        let (low, high) = head.split_at(self.half);
        let (out_low, out_high) = out.split_at_mut(self.half);
        for i in 0..self.half {
            out_low[i] = (low[i] * cos[i] - high[i] * sin[i]) * scale;
            out_high[i] = (high[i] * cos[i] + low[i] * sin[i]) * scale;
        }
    }
}
