//! Reference forward pass in plain loops: the test oracle of every backend, and the shortest
//! description of the model.
//!
//! It has no KV cache, computes every position of the sequence in every layer, stores activations
//! as f32 and sums in f64. Notation: d is the residual width, h the head dimension, T the number of
//! tokens.

use crate::model::{LayerWeights, Model, ModelConfig, RopePairing, Tensor};

/// A model with its weights converted to f32.
pub struct Reference {
    config: ModelConfig,
    /// Rotary inverse frequencies `[h / 2]`, radians per token.
    frequencies: Vec<f64>,
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
    attention_norm: Vec<f32>,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    mlp_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// A row-major `[rows, cols]` matrix.
struct Matrix {
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    fn new(tensor: &Tensor) -> Self {
        Matrix { cols: tensor.cols, data: tensor.to_f32() }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// Multiplies the matrix by the column `x`: `[cols] -> [rows]`.
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        self.data.chunks_exact(self.cols).map(|row| dot(row, x) as f32).collect()
    }
}

impl Layer {
    fn new(weights: &LayerWeights) -> Self {
        Layer {
            attention_norm: weights.attention_norm.clone(),
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
}

impl Reference {
    /// Converts the weights of `model` to f32; takes four bytes per parameter.
    pub fn new(model: &Model) -> Self {
        let weights = &model.weights;
        Reference {
            frequencies: model.config.inverse_frequencies(),
            config: model.config.clone(),
            embed: Matrix::new(&weights.embed),
            layers: weights.layers.iter().map(Layer::new).collect(),
            norm: weights.norm.clone(),
            lm_head: Matrix::new(&weights.lm_head),
        }
    }

    /// Returns the logits after each of `tokens`: `[T][vocab]`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        self.trace(tokens).logits
    }

    /// Runs `tokens`, each below the vocabulary size, from position 0.
    pub fn trace(&self, tokens: &[u32]) -> Trace {
        let mut x: Vec<Vec<f32>> =
            tokens.iter().map(|&token| self.embed.row(token as usize).to_vec()).collect();
        let mut hidden = Vec::new();
        for (layer, &window) in self.layers.iter().zip(&self.config.windows) {
            self.attention(layer, window, &mut x);
            self.mlp(layer, &mut x);
            hidden.push(x.clone());
        }
        let logits = x.iter().map(|x| self.lm_head.apply(&self.rms_norm(x, &self.norm))).collect();
        Trace { hidden, logits }
    }

    /// x += O attention(rope(Q norm(x)), rope(K norm(x)), V norm(x)). `x`: `[T][d]`.
    fn attention(&self, layer: &Layer, window: Option<usize>, x: &mut [Vec<f32>]) {
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for (position, x) in x.iter().enumerate() {
            let normed = self.rms_norm(x, &layer.attention_norm);
            q.push(self.rope(layer.q.apply(&normed), position));
            k.push(self.rope(layer.k.apply(&normed), position));
            v.push(layer.v.apply(&normed));
        }
        for (position, x) in x.iter_mut().enumerate() {
            // A token attends to itself and the tokens before it, at most `window` tokens in all.
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
            let (k, v) = (&k[first..=position], &v[first..=position]);
            add(x, &layer.o.apply(&self.attend(&q[position], k, v)));
        }
    }

    /// Softmax attention of each head of `q` (`[heads * h]`) over the visible keys and values
    /// (`[visible][kv_heads * h]`): `[heads * h]`.
    fn attend(&self, q: &[f32], k: &[Vec<f32>], v: &[Vec<f32>]) -> Vec<f32> {
        let width = self.config.head_dim;
        let heads_per_kv_head = self.config.num_heads / self.config.num_kv_heads;
        let scale = 1.0 / (width as f64).sqrt();
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

    /// x += Down(silu(Gate norm(x)) * Up norm(x)), for each position. `x`: `[T][d]`.
    fn mlp(&self, layer: &Layer, x: &mut [Vec<f32>]) {
        for x in x {
            let normed = self.rms_norm(x, &layer.mlp_norm);
            let (gate, up) = (layer.gate.apply(&normed), layer.up.apply(&normed));
            let inner: Vec<f32> = gate.iter().zip(&up).map(|(&g, &u)| silu(g) * u).collect();
            add(x, &layer.down.apply(&inner));
        }
    }

    /// x divided by its root mean square, times `weight`: `[d] -> [d]`.
    fn rms_norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mean_square = dot(x, x) / x.len() as f64;
        let scale = 1.0 / (mean_square + f64::from(self.config.rms_norm_eps)).sqrt();
        x.iter().zip(weight).map(|(&x, &w)| (f64::from(x) * scale) as f32 * w).collect()
    }

    /// Rotates each head of `x` (`[any heads * h]`) by its position. Pair i of a head is elements i
    /// and i + h/2 in the layout of Hugging Face's checkpoints, 2i and 2i + 1 in that of GGUF.
    fn rope(&self, mut x: Vec<f32>, position: usize) -> Vec<f32> {
        let half = self.config.head_dim / 2;
        for head in x.chunks_exact_mut(2 * half) {
            for (i, frequency) in self.frequencies.iter().enumerate() {
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

/// exp(scores), normalised to sum 1.
fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}
