//! Place of each weight in the one allocation that holds them all. Pure.

use crate::cuda::plan::shuffle::{FEATURES, WIDTH};
use crate::model::ModelConfig;

/// Every weight begins at a multiple of this, as a separate allocation would.
const ALIGNMENT: usize = 256;
/// Bytes of a bf16.
const ELEMENT: usize = 2;

/// Offsets, bytes.
pub(super) struct Layout {
    pub(super) embed: usize,
    pub(super) norms: Vec<usize>,
    /// qkv, o, gate_up, down of each layer.
    pub(super) layers: Vec<[usize; 4]>,
    /// Bias of q, k and v, norm of q, norm of k of each layer, where the family has them.
    pub(super) terms: Vec<[Option<usize>; 3]>,
    pub(super) lm_head: usize,
    /// Bytes of the whole.
    pub(super) bytes: usize,
}

impl Layout {
    /// The layout of a model's weights.
    pub(super) fn of(config: &ModelConfig) -> Layout {
        let (d, inner, vocab) = (config.hidden_size, config.intermediate_size, config.vocab_size);
        let q = config.q_size();
        let mut end = 0;
        let mut place = |bytes: usize| {
            let at = end;
            end += bytes.next_multiple_of(ALIGNMENT);
            at
        };
        let embed = place(vocab * d * ELEMENT);
        let norms = (0..2 * config.num_layers + 1).map(|_| place(d * ELEMENT)).collect();
        let shapes = [(q + 2 * config.kv_size(), d), (d, q), (2 * inner, d), (d, inner)];
        let layers = (0..config.num_layers)
            .map(|_| shapes.map(|(rows, width)| place(fragment_bytes(rows, width))))
            .collect();
        let lm_head = place(fragment_bytes(vocab, d));
        let (bias, norm) = (q + 2 * config.kv_size(), config.head_dim);
        let terms = (0..config.num_layers)
            .map(|_| {
                let [has_bias, has_norm] =
                    [config.architecture.has_qkv_bias(), config.architecture.has_qk_norm()];
                [(has_bias, bias), (has_norm, norm), (has_norm, norm)]
                    .map(|(is_there, len)| is_there.then(|| place(len * ELEMENT)))
            })
            .collect();
        Layout { embed, norms, layers, terms, lm_head, bytes: end }
    }
}

/// Bytes of a matrix in fragment order, padding included.
fn fragment_bytes(rows: usize, width: usize) -> usize {
    rows.next_multiple_of(FEATURES) * width.next_multiple_of(WIDTH) * ELEMENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_llama_take_what_they_should() {
        let config = ModelConfig::named("llama3-8b").unwrap();
        let layout = Layout::of(&config);
        // 8.03 billion parameters, of whose widths and rows none needs padding.
        assert_eq!(layout.bytes, 8_030_261_248 * 2);
        assert!(layout.layers.iter().flatten().all(|at| at.is_multiple_of(ALIGNMENT)));
    }

    #[test]
    fn places_do_not_overlap_and_padding_counts() {
        let config = ModelConfig { vocab_size: 130, ..ModelConfig::named("tiny").unwrap() };
        let layout = Layout::of(&config);
        let mut places = vec![layout.embed];
        places.extend(&layout.norms);
        places.extend(layout.layers.iter().flatten());
        places.extend([layout.lm_head, layout.bytes]);
        assert!(places.is_sorted_by(|a, b| a < b));
        assert_eq!(layout.bytes - layout.lm_head, 256 * 256 * 2);
    }
}
