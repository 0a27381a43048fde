//! Reference forward pass in plain loops: the test oracle of every backend, and the shortest
//! description of the model.
//!
//! It has no KV cache, computes every position of the sequence in every layer, stores activations
//! as f32 and sums in f64. Notation: d is the residual width, h the head dimension, T the number of
//! tokens.

mod delta_net;
mod matrix;

use crate::model::{
    Activation, Adapter, GatedMlp, LayerRope, LayerWeights, Mlp, MlpBias, Model, ModelConfig,
    PostNorms, Projection, QkNorm, QkvBias, RopePairing, SWIGLU_ALPHA, SWIGLU_LIMIT,
};
use delta_net::DeltaNet;
use matrix::{Matrix, dot};

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
    /// RoPE's inverse frequencies `[h/2]` and YaRN's factor of queries and keys, if the layer has
    /// RoPE.
    rope: Option<(Vec<f64>, f64)>,
    window: Option<usize>,
    o_bias: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    attention_norm: Vec<f32>,
    qkv_bias: Option<QkvBias>,
    qk_norm: Option<QkNorm>,
    post_norms: Option<PostNorms>,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    /// In place of attention.
    delta_net: Option<DeltaNet>,
    mlp_norm: Vec<f32>,
    mlp: Experts,
}

/// The MLPs of a layer: the experts, then the shared one; without a router, one.
struct Experts {
    router: Option<Matrix>,
    router_bias: Option<Vec<f32>>,
    gated: Vec<Gated>,
}

/// A gated MLP.
struct Gated {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    bias: Option<MlpBias>,
}

impl Experts {
    fn new(mlp: &Mlp) -> Self {
        let gated = |mlp: &GatedMlp| Gated {
            gate: Matrix::new(&mlp.gate),
            up: Matrix::new(&mlp.up),
            down: Matrix::new(&mlp.down),
            bias: mlp.bias.clone(),
        };
        let mixture = mlp.mixture();
        Experts {
            router: mixture.map(|mixture| Matrix::new(&mixture.router)),
            router_bias: mixture.and_then(|mixture| mixture.router_bias.clone()),
            gated: mlp.gated().map(gated).collect(),
        }
    }
}

impl Layer {
    fn new(config: &ModelConfig, index: usize, weights: &LayerWeights) -> Self {
        Layer {
            rope: match config.layer_rope(index) {
                LayerRope::Global => {
                    Some((config.inverse_frequencies(), config.rope.attention_factor()))
                }
                LayerRope::Local => config
                    .local_inverse_frequencies()
                    .zip(config.local_rope.map(|rope| rope.attention_factor())),
                LayerRope::Absent => None,
            },
            window: config.windows[index],
            o_bias: weights.o_bias.clone(),
            sinks: weights.sinks.clone(),
            attention_norm: weights.attention_norm.clone(),
            qkv_bias: weights.qkv_bias.clone(),
            qk_norm: weights.qk_norm.clone(),
            post_norms: weights.post_norms.clone(),
            q: Matrix::new(&weights.q),
            k: Matrix::new(&weights.k),
            v: Matrix::new(&weights.v),
            o: Matrix::new(&weights.o),
            delta_net: DeltaNet::of_layer(config, index, weights),
            mlp_norm: weights.mlp_norm.clone(),
            mlp: Experts::new(&weights.mlp),
        }
    }

    /// The matrix of `projection`, of the one MLP where it has one.
    fn projection_mut(&mut self, projection: Projection) -> &mut Matrix {
        match projection {
            Projection::Q => &mut self.q,
            Projection::K => &mut self.k,
            Projection::V => &mut self.v,
            Projection::O => &mut self.o,
            Projection::Gate => &mut self.mlp.gated[0].gate,
            Projection::Up => &mut self.mlp.gated[0].up,
            Projection::Down => &mut self.mlp.gated[0].down,
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
            match &layer.delta_net {
                None => self.attention(layer, &mut x),
                Some(net) => self.delta_net(layer, net, &mut x),
            }
            self.mlp(layer, &mut x);
            hidden.push(x.clone());
        }
        let of_row = |x: &Vec<f32>| self.lm_head.apply(&self.rms_norm(x, &self.norm));
        let mut logits: Vec<Vec<f32>> = x.iter().map(of_row).collect();
        logits.iter_mut().flatten().for_each(|logit| *logit /= self.config.logits_scaling);
        Trace { hidden, logits }
    }

    /// x += O attention(rope(Q norm(x)), rope(K norm(x)), V norm(x)). `x`: `[T][d]`. In a hybrid
    /// attention's output is multiplied by the sigmoid of a gate, whose heads Q computes beside
    /// those of the queries.
    fn attention(&self, layer: &Layer, x: &mut [Vec<f32>]) {
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        let mut gates = Vec::new();
        for (position, x) in x.iter().enumerate() {
            let normed = self.rms_norm(x, &layer.attention_norm);
            let projections = [&layer.q, &layer.k, &layer.v].map(|matrix| matrix.apply(&normed));
            let [mut q_row, mut k_row, mut v_row] = projections;
            if self.config.architecture.is_hybrid() {
                let gate;
                (q_row, gate) = self.split_heads(&q_row);
                gates.push(gate);
            }
            if let Some(bias) = &layer.qkv_bias {
                add(&mut q_row, &bias.q);
                add(&mut k_row, &bias.k);
                add(&mut v_row, &bias.v);
            }
            if let Some(norm) = &layer.qk_norm {
                q_row = self.norm_heads(&q_row, &norm.q);
                k_row = self.norm_heads(&k_row, &norm.k);
            }
            if let Some(rope) = &layer.rope {
                q_row = self.rotate(q_row, position, rope);
                k_row = self.rotate(k_row, position, rope);
            }
            q.push(q_row);
            k.push(k_row);
            v.push(v_row);
        }
        for (position, x) in x.iter_mut().enumerate() {
            // A token attends to itself and the tokens before it, at most `window` tokens in all.
            let first = layer.window.map_or(0, |window| (position + 1).saturating_sub(window));
            let (k, v) = (&k[first..=position], &v[first..=position]);
            let mut attended = self.attend(&q[position], k, v, layer.sinks.as_deref());
            for (out, gate) in attended.iter_mut().zip(gates.get(position).into_iter().flatten()) {
                *out *= sigmoid(*gate);
            }
            let mut out = layer.o.apply(&attended);
            layer.o_bias.iter().for_each(|bias| add(&mut out, bias));
            self.add_block(x, out, layer.post_norms.as_ref().map(|norms| &norms.attention));
        }
    }

    /// Adds `out`, normalised if there is a `post_norm`, to the residual stream `x`: `[d]`.
    fn add_block(&self, x: &mut [f32], mut out: Vec<f32>, post_norm: Option<&Vec<f32>>) {
        out.iter_mut().for_each(|out| *out *= self.config.residual_multiplier);
        match post_norm {
            None => add(x, &out),
            Some(weight) => add(x, &self.rms_norm(&out, weight)),
        }
    }

    /// Softmax attention of each head of `q` (`[heads * h]`) over the visible keys and values
    /// (`[visible][kv_heads * h]`): `[heads * h]`. A score of `sinks` has no value.
    fn attend(&self, q: &[f32], k: &[Vec<f32>], v: &[Vec<f32>], sinks: Option<&[f32]>) -> Vec<f32> {
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
            let scores = k.iter().map(|k| scale * dot(q, &k[range.clone()]));
            let sink = sinks.map(|sinks| f64::from(sinks[head]));
            let scores: Vec<f64> = scores.chain(sink).collect();
            let weights = softmax(&scores);
            out.extend(range.map(|column| {
                let read = |(weight, v): (&f64, &Vec<f32>)| weight * f64::from(v[column]);
                weights.iter().zip(v).map(read).sum::<f64>() as f32
            }));
        }
        out
    }

    /// x += MLP(norm(x)), or the weighted sum of the experts that the router chooses, for each
    /// position. `x`: `[T][d]`.
    fn mlp(&self, layer: &Layer, x: &mut [Vec<f32>]) {
        for x in x {
            let normed = self.rms_norm(x, &layer.mlp_norm);
            let chosen = match &layer.mlp.router {
                None => vec![(0, 1.0)],
                Some(router) => {
                    let mut scores = router.apply(&normed);
                    layer.mlp.router_bias.iter().for_each(|bias| add(&mut scores, bias));
                    self.route(&scores)
                }
            };
            let mut sum = vec![0.0; x.len()];
            for (expert, weight) in chosen {
                let out = self.gated(&layer.mlp.gated[expert], &normed);
                sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += weight * out);
            }
            self.add_block(x, sum, layer.post_norms.as_ref().map(|norms| &norms.mlp));
        }
    }

    /// The experts of a row by the router's `scores`, with their weights: the experts with the
    /// highest scores, of equal ones those with the lowest indices; last the shared one, if
    /// any, by the score behind those of the others.
    fn route(&self, scores: &[f32]) -> Vec<(usize, f32)> {
        let mixture = self.config.mixture.as_ref().expect("a router is that of a mixture");
        let (experts, shared) = scores.split_at(mixture.num_experts);
        let mut order: Vec<usize> = (0..experts.len()).collect();
        order.sort_by(|&a, &b| experts[b].total_cmp(&experts[a])); // Stable.
        order.truncate(mixture.experts_per_token);
        let exp = |&expert: &usize| f64::from(experts[expert] - experts[order[0]]).exp();
        let sum: f64 = match mixture.normalized {
            true => order.iter().map(exp).sum(),
            false => (0..experts.len()).map(|expert| exp(&expert)).sum(),
        };
        let chosen = order.iter().map(|expert| (*expert, (exp(expert) / sum) as f32));
        chosen.chain(shared.iter().map(|&score| (experts.len(), sigmoid(score)))).collect()
    }

    /// Down(activation(Gate x) * Up x): `[d] -> [d]`.
    fn gated(&self, mlp: &Gated, x: &[f32]) -> Vec<f32> {
        let (mut gate, mut up) = (mlp.gate.apply(x), mlp.up.apply(x));
        if let Some(bias) = &mlp.bias {
            add(&mut gate, &bias.gate);
            add(&mut up, &bias.up);
        }
        let activation: fn(f32, f32) -> f32 = match self.config.activation {
            Activation::Silu => |gate, up| silu(gate) * up,
            Activation::GeluTanh => |gate, up| gelu_tanh(gate) * up,
            Activation::SwigluOai => swiglu_oai,
        };
        let inner: Vec<f32> = gate.iter().zip(&up).map(|(&g, &u)| activation(g, u)).collect();
        let mut out = mlp.down.apply(&inner);
        mlp.bias.iter().for_each(|bias| add(&mut out, &bias.down));
        out
    }

    /// x divided by its root mean square, times `weight`: `[d] -> [d]`.
    fn rms_norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mean_square = dot(x, x) / x.len() as f64;
        let scale = 1.0 / (mean_square + f64::from(self.config.rms_norm_eps)).sqrt();
        x.iter().zip(weight).map(|(&x, &w)| (f64::from(x) * scale) as f32 * w).collect()
    }

    /// RMSNorm of each head of `x` (`[any heads * h]`) with the same `weight` (`[h]`), or of all
    /// heads together where `weight` is as long.
    fn norm_heads(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        x.chunks_exact(weight.len()).flat_map(|head| self.rms_norm(head, weight)).collect()
    }

    /// Rotates the first r dimensions of each head of `x` (`[any heads * h]`), mostly all, by its
    /// position times the frequencies of `rope` (`[r/2]`), and multiplies them by the factor.
    /// Pair i of a head is elements i and i + r/2 in the layout of Hugging Face's checkpoints, 2i
    /// and 2i + 1 in that of GGUF files of Llama.
    fn rotate(
        &self,
        mut x: Vec<f32>,
        position: usize,
        (frequencies, factor): &(Vec<f64>, f64),
    ) -> Vec<f32> {
        let half = self.config.rotary_dim() / 2;
        for head in x.chunks_exact_mut(self.config.head_dim) {
            for (i, frequency) in frequencies.iter().enumerate() {
                let (low, high) = match self.config.rope_pairing {
                    RopePairing::Halves => (i, i + half),
                    RopePairing::Adjacent => (2 * i, 2 * i + 1),
                };
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (a, b) = (factor * f64::from(head[low]), factor * f64::from(head[high]));
                head[low] = (a * cos - b * sin) as f32;
                head[high] = (b * cos + a * sin) as f32;
            }
        }
        x
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + f64::from(-x).exp())) as f32
}

fn silu(x: f32) -> f32 {
    let x = f64::from(x);
    (x / (1.0 + (-x).exp())) as f32
}

/// gpt-oss's SwiGLU.
fn swiglu_oai(gate: f32, up: f32) -> f32 {
    let (gate, up) = (gate.min(SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT));
    let (x, up) = (f64::from(gate), f64::from(up));
    (x / (1.0 + (-f64::from(SWIGLU_ALPHA) * x).exp()) * (up + 1.0)) as f32
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
