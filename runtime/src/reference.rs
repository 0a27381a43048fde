//! Reference forward pass in plain loops: the test oracle of every backend, and the shortest
//! description of the model.
//!
//! It has no KV cache, computes every position of the sequence in every layer, stores activations
//! as f32 and sums in f64. Notation: d is the residual width, h the head dimension, T the number of
//! tokens.

use crate::model::{
    Activation, Adapter, LayerRope, LayerWeights, LowRank, Model, ModelConfig, PostNorms,
    Projection, QkNorm, QkvBias, RopePairing, Tensor,
};

/// A model with its weights converted to f32.
pub struct Reference {
    config: ModelConfig,
    /// `[vocab, d]`
    embed: Matrix,
    layers: Vec<Layer>,
    /// `[d]`
    norm: Vec<f32>,
    /// `[vocab, d]`
    lm_head: Matrix,
}

/// Results of one pass.
pub struct Trace {
    /// The residual stream after each layer: `[num_layers][T][d]`.
    pub hidden: Vec<Vec<Vec<f32>>>,
    /// The logits at each position: `[T][vocab]`.
    pub logits: Vec<Vec<f32>>,
}

struct Layer {
    /// Inverse frequencies of RoPE, if the layer has one: `[h/2]`.
    frequencies: Option<Vec<f64>>,
    window: Option<usize>,
    attention_norm: Vec<f32>,
    qkv_bias: Option<QkvBias>,
    qk_norm: Option<QkNorm>,
    post_norms: Option<PostNorms>,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    mlp_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// A row-major `[rows, cols]` matrix, and what an adapter adds to its products.
struct Matrix {
    cols: usize,
    data: Vec<f32>,
    added: Option<Box<Added>>,
}

/// The factors of an adapter.
struct Added {
    /// `[rank, cols]`
    a: Matrix,
    /// B transposed `[rank, rows]`.
    b: Matrix,
    scale: f32,
}

impl Matrix {
    fn new(tensor: &Tensor) -> Self {
        Matrix { cols: tensor.cols, data: tensor.to_f32(), added: None }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// Multiplies the matrix by the column `x`: `[cols] -> [rows]`.
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let own = self.data.chunks_exact(self.cols).map(|row| dot(row, x) as f32);
        let Some(Added { a, b, scale }) = self.added.as_deref() else { return own.collect() };
        let inner = a.apply(x);
        let column = |at| b.data.iter().skip(at).step_by(b.cols).copied().collect::<Vec<f32>>();
        let added = |at| scale * dot(&column(at), &inner) as f32;
        own.enumerate().map(|(at, own)| own + added(at)).collect()
    }

    /// Adds the products with `factors` to those of this matrix.
    fn add(&mut self, factors: &LowRank) {
        let LowRank { a, b, scale } = factors;
        let added = Added { a: Matrix::new(a), b: Matrix::new(b), scale: *scale };
        self.added = Some(Box::new(added));
    }
}

impl Layer {
    fn new(config: &ModelConfig, index: usize, weights: &LayerWeights) -> Self {
        Layer {
            frequencies: match config.layer_rope(index) {
                LayerRope::Global => Some(config.inverse_frequencies()),
                LayerRope::Local => config.local_inverse_frequencies(),
                LayerRope::Absent => None,
            },
            window: config.windows[index],
            attention_norm: weights.attention_norm.clone(),
            qkv_bias: weights.qkv_bias.clone(),
            qk_norm: weights.qk_norm.clone(),
            post_norms: weights.post_norms.clone(),
            q: Matrix::new(&weights.q),
            k: Matrix::new(&weights.k),
            v: Matrix::new(&weights.v),
            o: Matrix::new(&weights.o),
            mlp_norm: weights.mlp_norm.clone(),
            gate: Matrix::new(&weights.gate),
            up: Matrix::new(&weights.up),
            down: Matrix::new(&weights.down),
        }
    }

    fn projection_mut(&mut self, projection: Projection) -> &mut Matrix {
        match projection {
            Projection::Q => &mut self.q,
            Projection::K => &mut self.k,
            Projection::V => &mut self.v,
            Projection::O => &mut self.o,
            Projection::Gate => &mut self.gate,
            Projection::Up => &mut self.up,
            Projection::Down => &mut self.down,
        }
    }
}

impl Reference {
    /// Converts the weights of `model` to f32; takes four bytes per parameter.
    pub fn new(model: &Model) -> Self {
        let (config, weights) = (&model.config, &model.weights);
        let layers = weights.layers.iter().enumerate();
        Reference {
            config: config.clone(),
            embed: Matrix::new(&weights.embed),
            layers: layers.map(|(index, layer)| Layer::new(config, index, layer)).collect(),
            norm: weights.norm.clone(),
            lm_head: Matrix::new(&weights.lm_head),
        }
    }

    /// The same model with `adapter`, which was loaded for it.
    pub fn with_adapter(mut self, adapter: &Adapter) -> Self {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            for projection in Projection::ALL {
                if let Some(factors) = adapter.factors(index, projection) {
                    layer.projection_mut(projection).add(factors);
                }
            }
        }
        self
    }

    /// Returns the logits after each of `tokens`: `[T][vocab]`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        self.trace(tokens).logits
    }

    /// Runs `tokens`, each below the vocabulary size, from position 0.
    pub fn trace(&self, tokens: &[u32]) -> Trace {
        let embed = |&token: &u32| {
            let row = self.embed.row(token as usize);
            row.iter().map(|x| x * self.config.embedding_scale).collect()
        };
        let mut x: Vec<Vec<f32>> = tokens.iter().map(embed).collect();
        let mut hidden = Vec::new();
        for layer in &self.layers {
            self.attention(layer, &mut x);
            self.mlp(layer, &mut x);
            hidden.push(x.clone());
        }
        let logits = x.iter().map(|x| self.lm_head.apply(&self.rms_norm(x, &self.norm))).collect();
        Trace { hidden, logits }
    }

    /// x += O attention(rope(Q norm(x)), rope(K norm(x)), V norm(x)). `x`: `[T][d]`.
    fn attention(&self, layer: &Layer, x: &mut [Vec<f32>]) {
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for (position, x) in x.iter().enumerate() {
            let normed = self.rms_norm(x, &layer.attention_norm);
            let projections = [&layer.q, &layer.k, &layer.v].map(|matrix| matrix.apply(&normed));
            let [mut q_row, mut k_row, mut v_row] = projections;
            if let Some(bias) = &layer.qkv_bias {
                add(&mut q_row, &bias.q);
                add(&mut k_row, &bias.k);
                add(&mut v_row, &bias.v);
            }
            if let Some(norm) = &layer.qk_norm {
                q_row = self.norm_heads(&q_row, &norm.q);
                k_row = self.norm_heads(&k_row, &norm.k);
            }
            if let Some(frequencies) = &layer.frequencies {
                q_row = self.rotate(q_row, position, frequencies);
                k_row = self.rotate(k_row, position, frequencies);
            }
            q.push(q_row);
            k.push(k_row);
            v.push(v_row);
        }
        for (position, x) in x.iter_mut().enumerate() {
            // A token attends to itself and the tokens before it, at most `window` tokens in all.
            let first = layer.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let (k, v) = (&k[first..=position], &v[first..=position]);
            let out = layer.o.apply(&self.attend(&q[position], k, v));
            self.add_block(x, out, layer.post_norms.as_ref().map(|norms| &norms.attention));
        }
    }

    /// Adds `out`, normalised if there is a `post_norm`, to the residual stream `x`: `[d]`.
    fn add_block(&self, x: &mut [f32], out: Vec<f32>, post_norm: Option<&Vec<f32>>) {
        match post_norm {
            None => add(x, &out),
            Some(weight) => add(x, &self.rms_norm(&out, weight)),
        }
    }

    /// Softmax attention of each head of `q` (`[heads * h]`) over the visible keys and values
    /// (`[visible][kv_heads * h]`): `[heads * h]`.
    fn attend(&self, q: &[f32], k: &[Vec<f32>], v: &[Vec<f32>]) -> Vec<f32> {
        let width = self.config.head_dim;
        let heads_per_kv_head = self.config.num_heads / self.config.num_kv_heads;
        let scale = match self.config.attention_scale {
            None => 1.0 / (width as f64).sqrt(),
            Some(scale) => f64::from(scale),
        };
        let mut out = Vec::with_capacity(q.len());
        for (head, q) in q.chunks_exact(width).enumerate() {
            let begin = head / heads_per_kv_head * width;
            let range = begin..begin + width;
            let scores: Vec<f64> = k.iter().map(|k| scale * dot(q, &k[range.clone()])).collect();
            let weights = softmax(&scores);
            out.extend(range.map(|column| {
                let read = |(weight, v): (&f64, &Vec<f32>)| weight * f64::from(v[column]);
                weights.iter().zip(v).map(read).sum::<f64>() as f32
            }));
        }
        out
    }

    /// x += Down(activation(Gate norm(x)) * Up norm(x)), for each position. `x`: `[T][d]`.
    fn mlp(&self, layer: &Layer, x: &mut [Vec<f32>]) {
        for x in x {
            let normed = self.rms_norm(x, &layer.mlp_norm);
            let (gate, up) = (layer.gate.apply(&normed), layer.up.apply(&normed));
            let activation = match self.config.activation {
                Activation::Silu => silu,
                Activation::GeluTanh => gelu_tanh,
            };
            let inner: Vec<f32> = gate.iter().zip(&up).map(|(&g, &u)| activation(g) * u).collect();
            let out = layer.down.apply(&inner);
            self.add_block(x, out, layer.post_norms.as_ref().map(|norms| &norms.mlp));
        }
    }

    /// x divided by its root mean square, times `weight`: `[d] -> [d]`.
    fn rms_norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mean_square = dot(x, x) / x.len() as f64;
        let scale = 1.0 / (mean_square + f64::from(self.config.rms_norm_eps)).sqrt();
        x.iter().zip(weight).map(|(&x, &w)| (f64::from(x) * scale) as f32 * w).collect()
    }

    /// RMSNorm of each head of `x` (`[any heads * h]`) with the same `weight` (`[h]`).
    fn norm_heads(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        x.chunks_exact(weight.len()).flat_map(|head| self.rms_norm(head, weight)).collect()
    }

    /// Rotates each head of `x` (`[any heads * h]`) by its position times `frequencies` (`[h/2]`).
    /// Pair i of a head is elements i and i + h/2 in the layout of Hugging Face's checkpoints, 2i
    /// and 2i + 1 in that of GGUF files of Llama.
    fn rotate(&self, mut x: Vec<f32>, position: usize, frequencies: &[f64]) -> Vec<f32> {
        let half = self.config.head_dim / 2;
        for head in x.chunks_exact_mut(2 * half) {
            for (i, frequency) in frequencies.iter().enumerate() {
                let (low, high) = match self.config.rope_pairing {
                    RopePairing::Halves => (i, i + half),
                    RopePairing::Adjacent => (2 * i, 2 * i + 1),
                };
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (a, b) = (f64::from(head[low]), f64::from(head[high]));
                head[low] = (a * cos - b * sin) as f32;
                head[high] = (b * cos + a * sin) as f32;
            }
        }
        x
    }
}

/// The sum of products, in f64.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    debug_assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

fn silu(x: f32) -> f32 {
    let x = f64::from(x);
    (x / (1.0 + (-x).exp())) as f32
}

/// GELU in its tanh form.
fn gelu_tanh(x: f32) -> f32 {
    let x = f64::from(x);
    let u = std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x * x * x);
    (0.5 * x * (1.0 + u.tanh())) as f32
}

/// exp(scores), normalised to sum 1.
fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}
