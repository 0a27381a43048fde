//! Naive references of the matrix kernels, in f64, each value with the error that the kernel is
//! allowed.

use half::bf16;

/// A value, and how far from it a kernel may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Near {
    /// The value.
    pub value: f64,
    /// The largest difference from it.
    pub error: f64,
}

/// Relative error of rounding to bf16: half of the last of 8 bits.
const BF16: f64 = 1.0 / 256.0;
/// Relative error of a handful of f32 operations and of the approximate functions (2 ulp each).
const F32: f64 = 8.0 / 8_388_608.0;
/// Absolute error of a rotation: angle within 2^-22, approximate sine and cosine within 2^-20.9.
const ROTATION: f64 = 1.0 / 524_288.0;

impl Near {
    fn scaled(self, by: f64) -> Near {
        Near {
            value: self.value * by,
            error: self.error * by.abs() + (self.value * by).abs() * F32,
        }
    }

    /// As the kernel stores it in bf16.
    pub fn rounded(self) -> Near {
        Near {
            value: self.value,
            error: self.error + (self.value.abs() + self.error) * BF16 + 1e-38,
        }
    }

    /// Returns true if `found` is near enough.
    pub fn holds(self, found: f64) -> bool {
        (found - self.value).abs() <= self.error
    }
}

/// Weights of a product before padding and shuffling: `[features, width]`, row-major.
pub struct Matrix {
    /// Row-major.
    pub data: Vec<bf16>,
    /// Features.
    pub rows: usize,
    /// Terms of each sum.
    pub width: usize,
}

impl Matrix {
    /// The weights of one feature.
    pub fn row(&self, row: usize) -> &[bf16] {
        &self.data[row * self.width..][..self.width]
    }
}

/// x . w, with the error of summing in f32: tensor cores add 16 products at once and round (or cut)
/// the sum once, so that width/16 roundings lie on a path, each within 2^-22 of the magnitudes
/// added so far; 16 more for adding up parts.
fn dot(x: &[bf16], w: &[bf16]) -> Near {
    let products = x.iter().zip(w).map(|(x, w)| f64::from(x.to_f32()) * f64::from(w.to_f32()));
    let (value, magnitude) = products.fold((0.0, 0.0), |(sum, all), p| (sum + p, all + p.abs()));
    let roundings = x.len() as f64 / 16.0 + 16.0;
    Near { value, error: roundings * magnitude / 4_194_304.0 }
}

/// The scale of a row with partial sums of squares `ss`.
pub fn row_scale(ss: &[f32], width: usize, eps: f32) -> f64 {
    let sum: f64 = ss.iter().map(|&part| f64::from(part)).sum();
    1.0 / (sum / width as f64 + f64::from(eps)).sqrt()
}

/// Row-major `[rows, width]` into fragment order `[rows/16][width/16][32 lanes][8]`, as mma
/// m16n8k16 wants its A operand; `order[i]` is the source row of row i, `None` is zeros.
pub fn fragment_order(matrix: &Matrix, order: &[Option<usize>], width: usize) -> Vec<bf16> {
    let mut out = Vec::with_capacity(order.len() * width);
    for tile in 0..order.len() / 16 {
        for step in 0..width / 16 {
            for lane in 0..32 {
                for element in 0..8 {
                    let row = tile * 16 + lane / 4 + (element / 2 % 2) * 8;
                    let column = step * 16 + lane % 4 * 2 + element % 2 + (element / 4) * 8;
                    let source = order[row].filter(|_| column < matrix.width);
                    out.push(source.map_or(bf16::ZERO, |row| matrix.row(row)[column]));
                }
            }
        }
    }
    out
}

/// Rows as they are, padded.
pub fn plain_order(rows: usize, padded: usize) -> Vec<Option<usize>> {
    (0..padded).map(|row| Some(row).filter(|&row| row < rows)).collect()
}

/// Place i and i + head_dim/2 of a head lie 8 rows apart in a tile.
pub fn rotation_order(rows: usize, head_dim: usize, padded: usize) -> Vec<Option<usize>> {
    let mut order = Vec::new();
    for head in 0..rows / head_dim {
        for tile in 0..head_dim / 16 {
            for half in 0..2 {
                order.extend(
                    (0..8).map(|i| Some(head * head_dim + half * head_dim / 2 + tile * 8 + i)),
                );
            }
        }
    }
    order.resize(padded, None);
    order
}

/// Eight rows of gate, eight of up.
pub fn alternating_order(ff: usize, padded: usize) -> Vec<Option<usize>> {
    let mut order = Vec::new();
    for tile in 0..ff.div_ceil(8) {
        for part in 0..2 {
            order.extend(
                (0..8).map(|i| Some(tile * 8 + i).filter(|&i| i < ff).map(|i| part * ff + i)),
            );
        }
    }
    order.resize(padded, None);
    order
}

/// Logits `[features]` of one row.
pub fn logits(x: &[bf16], w: &Matrix, scale: f64) -> Vec<Near> {
    (0..w.rows).map(|feature| dot(x, w.row(feature)).scaled(scale)).collect()
}

/// silu(gate) * up of one row `[ff]`; `w` holds gate's rows, then up's.
pub fn swiglu(x: &[bf16], w: &Matrix, scale: f64) -> Vec<Near> {
    let ff = w.rows / 2;
    let one = |feature: usize| {
        let gate = dot(x, w.row(feature)).scaled(scale);
        let up = dot(x, w.row(ff + feature)).scaled(scale);
        let silu = gate.value / (1.0 + (-gate.value).exp());
        // |silu'| < 1.1
        let error = 1.1 * gate.error * (up.value.abs() + up.error) + silu.abs() * up.error;
        let value = silu * up.value;
        Near { value, error: error + value.abs() * F32 }.rounded()
    };
    (0..ff).map(one).collect()
}

/// Results of the residual epilogue for one row.
pub struct Residual {
    /// The residual stream.
    pub h: Vec<Near>,
    /// It times the weights of the next norm, without the scale.
    pub x_next: Vec<Near>,
    /// Sums of squares, by 128 features.
    pub ss: Vec<Near>,
}

/// h + x . w of one row, with all that follows from it.
pub fn residual(x: &[bf16], w: &Matrix, h: &[f32], gamma: &[bf16]) -> Residual {
    let add = |feature: usize| {
        let sum = dot(x, w.row(feature));
        let value = sum.value + f64::from(h[feature]);
        Near { value, error: sum.error + value.abs() * F32 }
    };
    let h: Vec<Near> = (0..w.rows).map(add).collect();
    let weighted = |(near, gamma): (&Near, &bf16)| near.scaled(f64::from(gamma.to_f32())).rounded();
    let squares = |part: &[Near]| {
        let value: f64 = part.iter().map(|near| near.value * near.value).sum();
        let error: f64 =
            part.iter().map(|near| (2.0 * near.value.abs() + near.error) * near.error).sum();
        // 4 + 5 additions on a path.
        Near { value, error: error + value * 16.0 * F32 }
    };
    let x_next = h.iter().zip(gamma).map(weighted).collect();
    let ss = h.chunks(128).map(squares).collect();
    Residual { h, x_next, ss }
}

/// Bias and norms of the heads, as `params::HeadTerms`; an empty vector: none.
#[derive(Clone, Debug, Default)]
pub struct HeadTerms {
    /// Of queries, keys and values.
    pub bias: Vec<bf16>,
    /// Weights of the norm of each head of the queries.
    pub q_norm: Vec<bf16>,
    /// Of the keys.
    pub k_norm: Vec<bf16>,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl HeadTerms {
    /// Applies the terms to heads `[heads + 2 kv_heads][head_dim]`: the first `heads` are queries,
    /// those from `turned_heads` on are values.
    fn apply(&self, row: &mut [Near], heads: usize, turned_heads: usize, head_dim: usize) {
        for (near, bias) in row.iter_mut().zip(&self.bias) {
            near.value += f64::from(bias.to_f32());
            near.error += near.value.abs() * F32;
        }
        if !self.q_norm.is_empty() {
            for (index, head) in row.chunks_exact_mut(head_dim).take(turned_heads).enumerate() {
                self.norm(head, if index < heads { &self.q_norm } else { &self.k_norm });
            }
        }
    }

    /// RMSNorm of one head. An error e of the head's values moves the scale by less than
    /// sum(|v| e) / (head_dim * mean square), relative to it.
    fn norm(&self, head: &mut [Near], gamma: &[bf16]) {
        let width = head.len() as f64;
        let squares: f64 = head.iter().map(|near| near.value * near.value).sum();
        let mean = squares / width + f64::from(self.eps);
        let moved: f64 = head.iter().map(|near| near.value.abs() * near.error).sum();
        let (scale, relative) = (1.0 / mean.sqrt(), 1.01 * moved / (width * mean) + 4.0 * F32);
        for (near, gamma) in head.iter_mut().zip(gamma) {
            let by = scale * f64::from(gamma.to_f32());
            let error = near.error + near.value.abs() * relative;
            *near = Near { value: near.value * by, error: error * by.abs() };
        }
    }
}

/// Heads `[heads + 2 kv_heads][head_dim]` of one row: queries and keys turned to `position`, values
/// as they are.
pub fn qkv(
    x: &[bf16],
    w: &Matrix,
    scale: f64,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    terms: &HeadTerms,
    position: usize,
    inverse_frequencies: &[f64],
) -> Vec<Near> {
    let turned_heads = heads + kv_heads;
    let mut row: Vec<Near> =
        (0..w.rows).map(|feature| dot(x, w.row(feature)).scaled(scale)).collect();
    terms.apply(&mut row, heads, turned_heads, head_dim);
    let mut out = row.clone();
    let half = head_dim / 2;
    for head in 0..turned_heads {
        for (i, frequency) in inverse_frequencies.iter().enumerate() {
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            let (at, partner) = (head * head_dim + i, head * head_dim + half + i);
            let (low, high) = (row[at], row[partner]);
            let both = low.value.abs() + high.value.abs();
            let error = low.error + high.error + both * (ROTATION + F32);
            out[at] = Near { value: low.value * cosine - high.value * sine, error };
            out[partner] = Near { value: high.value * cosine + low.value * sine, error };
        }
    }
    out.into_iter().map(Near::rounded).collect()
}
