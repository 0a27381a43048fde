//! Each kernel against its reference, on every instruction set that the CPU has.

mod aligned;
mod delta_rule;
mod dtype;
mod expand;
mod pairs;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod proven;
mod q8_product;
mod random;

use trail_cpu_kernels::{
    Activation, Attention, AttentionScratch, BLOCK_TOKENS, Dtype, KV_DTYPES, Kernels, Packing,
    Product, fill_random, partitions,
};
use trail_platform::simd::MAX_LANES;
use trail_platform::{Isa, Rng};

fn kernels() -> impl Iterator<Item = &'static Kernels> {
    Isa::available().map(|isa| Kernels::select(isa).unwrap())
}

/// Pseudo-random numbers in -1..1.
fn numbers(seed: u32, len: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed.into());
    (0..len).map(|_| rng.signed()).collect()
}

/// `len` random weights of `dtype`, from the second byte: an odd address. Returns the bytes and
/// their values. Integers and small scales of blocks are any, also those that no quantizer writes.
fn stored(dtype: Dtype, seed: u64, len: usize) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0_u8; 1 + dtype.bytes_of(len)];
    let mut rng = Rng::new(seed);
    fill_random(&mut bytes[1..], dtype, &mut rng);
    if let Dtype::Q4K | Dtype::Q5K | Dtype::Q6K = dtype {
        for block in bytes[1..].chunks_exact_mut(dtype.block_bytes()) {
            let scales = if dtype == Dtype::Q6K { 192..208 } else { 4..16 };
            block[scales].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        }
    }
    let mut widened = vec![0.0; len];
    dtype.widen(&bytes[1..], &mut widened);
    (bytes, widened)
}

/// `rows` of length `k`, packed.
fn packed(packing: Packing, rows: usize, k: usize, values: &[f32]) -> Vec<f32> {
    let stride = Packing::stride(k);
    let mut out = vec![0.0; rows * stride];
    for (row, values) in values.chunks_exact(k).enumerate() {
        for (i, &value) in values.iter().enumerate() {
            out[row * stride + packing.index(i)] = value;
        }
    }
    out
}

/// Operands of a product, without their lengths.
struct Operands<'a> {
    kernels: &'a Kernels,
    packing: Packing,
    x: &'a [f32],
    weights: &'a [u8],
    dtype: Dtype,
}

impl Operands<'_> {
    /// The product of `rows` of `x` with `cols` rows of weights, of length `k`.
    fn product(&self, rows: std::ops::Range<usize>, cols: usize, k: usize) -> Vec<f32> {
        let x = packed(self.packing, rows.len(), k, &self.x[rows.start * k..rows.end * k]);
        let mut out = vec![f32::NAN; rows.len() * cols];
        self.kernels.product(Product {
            x: &x,
            packing: self.packing,
            rows: rows.len(),
            weights: self.weights,
            dtype: self.dtype,
            cols,
            k,
            next: 0,
            out: &mut out,
        });
        out
    }
}

/// Rows, columns and length of products; the length is rounded up to a whole block.
const SHAPES: [(usize, usize, usize); 5] =
    [(1, 1, 1), (2, 5, 31), (3, 4, 64), (7, 6, 97), (13, 9, 2100)];

#[test]
fn products_are_right_and_have_the_same_bits_in_any_tile() {
    for kernels in kernels() {
        // bf16 in both orders: by parity alone, in natural order beside another type.
        let orders = Dtype::ALL.map(|dtype| (dtype, dtype)).into_iter();
        for (dtype, beside) in orders.chain([(Dtype::Bf16, Dtype::F32)]) {
            for (rows, cols, k) in SHAPES {
                let k = k.next_multiple_of(dtype.block_values());
                let x = numbers(1, rows * k);
                let (bytes, w) = stored(dtype, 2, cols * k);
                let packing = Packing::new([dtype, beside], kernels.lanes);
                let weights = &bytes[1..];
                let operands = Operands { kernels, packing, x: &x, weights, dtype };
                let all = operands.product(0..rows, cols, k);
                for row in 0..rows {
                    let alone = operands.product(row..row + 1, cols, k);
                    assert_eq!(alone, all[row * cols..(row + 1) * cols], "{dtype} {k}");
                    for col in 0..cols {
                        let terms = (0..k).map(|i| x[row * k + i] as f64 * w[col * k + i] as f64);
                        let size: f64 = terms.clone().map(f64::abs).sum();
                        let error = (all[row * cols + col] as f64 - terms.sum::<f64>()).abs();
                        // A lane adds k / lanes terms; the bound is loose but scales with k.
                        let roundings = (k as f64 / 4.0).sqrt() + 8.0;
                        assert!(error <= size * roundings * 2_f64.powi(-24), "{dtype} {k}");
                    }
                }
            }
        }
    }
}

/// Unpacking in registers gives the f32 of `Dtype::widen`, and the order of sums is that of f32.
#[test]
fn product_with_quantized_weights_has_the_bits_of_the_widened_weights() {
    for kernels in kernels() {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
            for (rows, cols, k) in SHAPES {
                let k = k.next_multiple_of(dtype.block_values());
                let x = numbers(1, rows * k);
                let (bytes, w) = stored(dtype, 3, cols * k);
                let packing = Packing::new([dtype], kernels.lanes);
                let weights = &bytes[1..];
                let quantized = Operands { kernels, packing, x: &x, weights, dtype };
                let wide: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
                let wide = Operands { weights: &wide, dtype: Dtype::F32, ..quantized };
                let bits = |operands: &Operands<'_>| {
                    let out = operands.product(0..rows, cols, k);
                    out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(bits(&quantized), bits(&wide), "{:?} {dtype} {k}", kernels.isa);
            }
        }
    }
}

#[test]
fn rms_norm_is_its_formula() {
    for kernels in kernels() {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for len in [1, 10, 64, 333] {
                let (x, weight) = (numbers(3, len), numbers(4, len));
                let packing = Packing::new([dtype], kernels.lanes);
                let mut out = vec![f32::NAN; Packing::stride(len)];
                kernels.rms_norm(&x, &weight, 1e-5, packing, &mut out);
                let mean = x.iter().map(|&x| (x as f64).powi(2)).sum::<f64>() / len as f64;
                let expected: Vec<f32> = x
                    .iter()
                    .zip(&weight)
                    .map(|(&x, &w)| (x as f64 / (mean + 1e-5).sqrt() * w as f64) as f32)
                    .collect();
                let expected = packed(packing, 1, len, &expected);
                for (out, expected) in out.iter().zip(&expected) {
                    assert!((out - expected).abs() <= 1e-6 * expected.abs(), "{out} {expected}");
                }
            }
        }
    }
}

#[test]
fn rms_scale_is_its_formula() {
    for kernels in kernels() {
        for len in [2, 20, 64, 333] {
            let x = numbers(3, len);
            let mean = x.iter().map(|&x| (x as f64).powi(2)).sum::<f64>() / len as f64;
            let expected = 1.0 / (mean + 1e-5).sqrt();
            let error = (kernels.rms_scale(&x, 1e-5) as f64 - expected).abs();
            assert!(error <= 5e-7 * expected, "{len}: off by {error:e}");
        }
    }
}

#[test]
fn swiglu_is_its_formula_over_the_whole_range() {
    let gate: Vec<f32> = (-1600..1600).map(|i| i as f32 / 16.0).collect();
    let up = numbers(5, gate.len());
    for kernels in kernels() {
        let mut out = gate.clone();
        kernels.gate(Activation::Silu, &mut out, &up);
        for ((&out, &gate), &up) in out.iter().zip(&gate).zip(&up) {
            let expected = gate as f64 / (1.0 + (-gate as f64).exp()) * up as f64;
            // Below -87 the exponential is clamped, where the result is negligible.
            let error = (out as f64 - expected).abs();
            assert!(error <= 4e-7 * expected.abs() + 1e-35, "{gate}: {out} {expected}");
        }
    }
}

/// The exponent z = 2 u of GeGLU is off by 4 roundings relatively: constant, square, sum and
/// product. By the derivative of log sigmoid(z), sigmoid(-z), its error of 4 z roundings passes
/// into the result; the exponential, the quotient and the product take 7 more, as in SwiGLU.
#[test]
fn geglu_is_its_formula_over_the_whole_range() {
    let gate: Vec<f32> = (-1600..1600).map(|i| i as f32 / 16.0).collect();
    let up = numbers(8, gate.len());
    for kernels in kernels() {
        let mut out = gate.clone();
        kernels.gate(Activation::GeluTanh, &mut out, &up);
        for ((&out, &gate), &up) in out.iter().zip(&gate).zip(&up) {
            let x = gate as f64;
            let z = 2.0 * std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3));
            let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
            let expected = x * sigmoid(z) * up as f64;
            let roundings = 7.0 + 4.0 * z.abs() * sigmoid(-z);
            // Below -87 the exponential is clamped, where the result is negligible.
            let error = (out as f64 - expected).abs();
            let limit = roundings * 2_f64.powi(-24) * expected.abs() + 1e-35;
            assert!(error <= limit, "{gate}: {out} {expected}");
        }
    }
}

/// The exponent is off by 2 roundings relatively, its constant and the product, as in GeGLU; beside
/// SwiGLU's 7 there is the sum of `up` and 1.
#[test]
fn swiglu_of_gpt_oss_is_its_formula_over_the_whole_range() {
    let gate: Vec<f32> = (-1600..1600).map(|i| i as f32 / 16.0).collect();
    let up: Vec<f32> = numbers(9, gate.len()).iter().map(|up| 9.0 * up).collect();
    for kernels in kernels() {
        let mut out = gate.clone();
        kernels.gate(Activation::SwigluOai, &mut out, &up);
        for ((&out, &gate), &up) in out.iter().zip(&gate).zip(&up) {
            let (x, up) = (gate.min(7.0) as f64, up.clamp(-7.0, 7.0) as f64);
            let z = 1.702 * x;
            let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
            let expected = x * sigmoid(z) * (up + 1.0);
            let roundings = 8.0 + 2.0 * z.abs() * sigmoid(-z);
            // Below -87 the exponential is clamped, where the result is negligible.
            let error = (out as f64 - expected).abs();
            let limit = roundings * 2_f64.powi(-24) * expected.abs() + 1e-35;
            assert!(error <= limit, "{gate}: {out} {expected}");
        }
    }
}

/// Shape of an attention task.
struct Case {
    rows: usize,
    group: usize,
    head_dim: usize,
    position: usize,
    window: usize,
}

#[test]
fn attention_is_softmax_of_scores_times_values() {
    for (kernels, dtype) in kernels().flat_map(|k| KV_DTYPES.map(|dtype| (k, dtype))) {
        // Vectors of whole blocks.
        let case = |rows, group, head_dim: usize, position, window| {
            let head_dim = head_dim.next_multiple_of(dtype.block_values());
            Case { rows, group, head_dim, position, window }
        };
        check_attention(kernels, dtype, case(1, 1, 2, 0, usize::MAX));
        check_attention(kernels, dtype, case(1, 4, 64, 63, usize::MAX));
        check_attention(kernels, dtype, case(5, 3, 34, 14, usize::MAX));
        check_attention(kernels, dtype, case(9, 2, 48, 40, 7));
        check_attention(kernels, dtype, case(20, 1, 10, 0, 16));
        // A window that begins within a span, and reaches over several.
        check_attention(kernels, dtype, case(7, 2, 10, 400, 150));
        // Several partitions of the context; with the window, rows whose oldest partition differs.
        check_attention(kernels, dtype, case(1, 2, 10, 1100, usize::MAX));
        check_attention(kernels, dtype, case(9, 1, 10, 1530, 510));
    }
}

/// Keys and values are rounded to `dtype` before, so the tolerance is that of f32.
fn check_attention(kernels: &Kernels, dtype: Dtype, case: Case) {
    let Case { rows, group, head_dim, position, window } = case;
    const TOKENS: usize = BLOCK_TOKENS;
    // 101 is a prime: every block once, in no order.
    let blocks: Vec<u32> = (1..101).map(|i| i * 37 % 101).collect();
    let plane = TOKENS * head_dim;
    let len = 2 * plane;
    // Memory beyond the context must not influence the result, even if it is NaN.
    let padding = MAX_LANES.next_multiple_of(dtype.block_values());
    let mut kv = vec![f32::NAN; 101 * len + padding];
    let place = |token: usize, values: usize| {
        blocks[token / TOKENS] as usize * len + values * plane + token % TOKENS * head_dim
    };
    let context = numbers(6, (position + rows) * 2 * head_dim);
    for (token, pair) in context.chunks_exact(2 * head_dim).enumerate() {
        kv[place(token, 0)..][..head_dim].copy_from_slice(&pair[..head_dim]);
        kv[place(token, 1)..][..head_dim].copy_from_slice(&pair[head_dim..]);
    }
    let mut stored = vec![0; dtype.bytes_of(kv.len())];
    dtype.narrow(&kv, &mut stored);
    dtype.widen(&stored, &mut kv);
    let queries = numbers(7, rows * group * head_dim);
    let mut scratch = AttentionScratch::new(rows * group, head_dim).unwrap();
    let stride = scratch.head_stride;
    for (query, values) in queries.chunks_exact(head_dim).enumerate() {
        scratch.queries[query * stride..][..head_dim].copy_from_slice(values);
    }
    kernels.attention(Attention {
        scratch: &mut scratch,
        partitions: partitions(position, position + rows - 1, window),
        rows,
        group,
        head_dim,
        position,
        window,
        kv: &stored,
        kv_dtype: dtype,
        blocks: &blocks,
        block_bytes: dtype.bytes_of(len),
        keys: 0,
        values: dtype.bytes_of(plane),
    });
    for (query, values) in queries.chunks_exact(head_dim).enumerate() {
        let out = scratch.total.finish(query, head_dim);
        let last = position + query / group;
        let first = (last + 1).saturating_sub(window);
        let score = |token: usize| -> f64 {
            let key = &kv[place(token, 0)..][..head_dim];
            values.iter().zip(key).map(|(&q, &k)| q as f64 * k as f64).sum()
        };
        let total: f64 = (first..=last).map(|token| score(token).exp()).sum();
        for i in 0..head_dim {
            let expected: f64 = (first..=last)
                .map(|token| score(token).exp() / total * kv[place(token, 1) + i] as f64)
                .sum();
            let error = (out[i] as f64 - expected).abs();
            assert!(error < 3e-6, "query {query}, place {i}: off by {error:e}");
        }
    }
}
