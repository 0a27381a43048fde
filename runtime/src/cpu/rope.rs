//! Rotary position embedding. Rotated heads are in Hugging Face's order, which pairs dimension i
//! with i + rotary_dim / 2; the rows of the projections can be stored in another one.

use crate::model::{LayerRope, ModelConfig, RopeConfig, RopePairing};

/// Tables of a model's layers.
pub(crate) struct RopeTables {
    global: RopeTable,
    local: Option<RopeTable>,
}

impl RopeTables {
    /// Computes the tables of positions `0..max_context`.
    pub(crate) fn new(config: &ModelConfig, max_context: usize) -> Self {
        let table = |rope: &RopeConfig, frequencies: Vec<f64>| {
            RopeTable::new(config, &frequencies, rope.attention_factor(), max_context)
        };
        let local = config.local_rope.zip(config.local_inverse_frequencies());
        RopeTables {
            global: table(&config.rope, config.inverse_frequencies()),
            local: local.map(|(rope, frequencies)| table(&rope, frequencies)),
        }
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

/// Precomputed cosines and sines of every position, times YaRN's factor.
pub(crate) struct RopeTable {
    /// `[max_context][cos | sin][half]`
    table: Vec<f32>,
    half: usize,
    /// Order of the dimensions of a head before its rotation.
    pairing: RopePairing,
}

impl RopeTable {
    /// Computes the table of positions `0..max_context`.
    fn new(config: &ModelConfig, frequencies: &[f64], factor: f64, max_context: usize) -> Self {
        let half = config.rotary_dim() / 2;
        let mut table = Vec::with_capacity(max_context * config.rotary_dim());
        for position in 0..max_context {
            let angles = frequencies.iter().map(|frequency| position as f64 * frequency);
            table.extend(angles.clone().map(|angle| (factor * angle.cos()) as f32));
            table.extend(angles.map(|angle| (factor * angle.sin()) as f32));
        }
        RopeTable { table, half, pairing: config.rope_pairing }
    }

    /// Writes `head` (`[head_dim]`), rotated to `position` and multiplied by `scale`, to `out`, in
    /// Hugging Face's order. Dimensions beyond those of the table are only multiplied.
    pub(crate) fn rotate(&self, head: &[f32], position: usize, scale: f32, out: &mut [f32]) {
        let (cos, sin) =
            self.table[position * 2 * self.half..][..2 * self.half].split_at(self.half);
        let (head, rest) = head.split_at(2 * self.half);
        let (out, out_rest) = out.split_at_mut(2 * self.half);
        out_rest.iter_mut().zip(rest).for_each(|(out, value)| *out = value * scale);
        let (out_low, out_high) = out.split_at_mut(self.half);
        let mut rotate_pair = |i: usize, low: f32, high: f32| {
            out_low[i] = (low * cos[i] - high * sin[i]) * scale;
            out_high[i] = (high * cos[i] + low * sin[i]) * scale;
        };
        match self.pairing {
            RopePairing::Halves => {
                let (low, high) = head.split_at(self.half);
                (0..self.half).for_each(|i| rotate_pair(i, low[i], high[i]));
            }
            RopePairing::Adjacent => {
                let pairs = head.chunks_exact(2).enumerate();
                pairs.for_each(|(i, pair)| rotate_pair(i, pair[0], pair[1]));
            }
        }
    }
}
