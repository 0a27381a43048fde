//! 16 lanes in plain Rust, for any CPU; the compiler maps them to SSE2, NEON and others.
//!
//! Wider than those registers on purpose: the compiler turns four lanes into four scalars, but
//! sixteen (in plain loops) into vectors. Measured with SSE2 on a tile of dot products: 30 instead
//! of 15 GFLOP/s.

use super::{ByteDot, Bytes, MAX_LANES, PairDot, Simd};

const LANES: usize = 16;

/// Sixteen f32.
#[derive(Clone, Copy)]
pub struct Portable([f32; LANES]);

/// Sixteen 32-bit integers.
#[derive(Clone, Copy)]
pub struct PortableWords([u32; LANES]);

impl PortableWords {
    #[inline(always)]
    fn map(mut self, f: impl Fn(u32) -> u32) -> Self {
        for word in &mut self.0 {
            *word = f(*word);
        }
        self
    }
}

impl Portable {
    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        self
    }

    /// Reads little-endian words and converts each to f32.
    ///
    /// # Safety
    ///
    /// `p` must be readable for `4 * LANES` bytes.
    #[inline(always)]
    unsafe fn map_u32(p: *const u8, f: impl Fn(u32) -> f32) -> Self {
        // SAFETY: the caller guarantees `4 * LANES` readable bytes.
        let words = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        let mut out = [0.0; LANES];
        for (out, word) in out.iter_mut().zip(words) {
            *out = f(u32::from_le(word));
        }
        Portable(out)
    }
}

/// Converts a half-precision value: exact, and without branches, so that it vectorizes.
#[inline(always)]
fn widen_f16(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    // The exponents' biases differ by 112; scaling by 2^112 also normalises subnormals.
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let infinite = magnitude | 0x7f80_0000;
    let bits = if half & 0x7c00 == 0x7c00 { infinite } else { scaled.to_bits() };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

impl Simd for Portable {
    type Words = PortableWords;
    type NibbleTable = (Self, Self);

    const LANES: usize = LANES;
    const TILE_ROWS: usize = 3;
    const NARROW_TILE_ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Portable([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: readable for LANES f32 by contract.
        Portable(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Self {
        // SAFETY: readable for 4 * LANES bytes by contract.
        unsafe { Self::map_u32(p, f32::from_bits) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: readable for 2 * LANES bytes by contract.
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let mut out = [0.0; LANES];
        for (out, half) in out.iter_mut().zip(halves) {
            *out = widen_f16(u16::from_le(half));
        }
        Portable(out)
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self {
        // SAFETY: readable for 2 bytes by contract.
        let half = unsafe { p.cast::<u16>().read_unaligned() };
        Portable([widen_f16(u16::from_le(half)); LANES])
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        // SAFETY: readable for 2 * LANES bytes by contract.
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        let mut out = [0.0; LANES];
        for (out, half) in out.iter_mut().zip(halves) {
            *out = f32::from_bits(u32::from(u16::from_le(half)) << 16);
        }
        Portable(out)
    }

    #[inline(always)]
    unsafe fn load_bf16_even(p: *const u8) -> Self {
        // SAFETY: readable for 4 * LANES bytes by contract.
        unsafe { Self::map_u32(p, |pair| f32::from_bits(pair << 16)) }
    }

    #[inline(always)]
    unsafe fn load_bf16_odd(p: *const u8) -> Self {
        // SAFETY: readable for 4 * LANES bytes by contract.
        unsafe { Self::map_u32(p, |pair| f32::from_bits(pair & 0xffff_0000)) }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> PortableWords {
        // SAFETY: readable for LANES bytes by contract.
        let bytes = unsafe { p.cast::<[u8; LANES]>().read() };
        PortableWords(bytes.map(u32::from))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> PortableWords {
        // SAFETY: readable for LANES bytes by contract.
        let bytes = unsafe { p.cast::<[i8; LANES]>().read() };
        PortableWords(bytes.map(|byte| i32::from(byte) as u32))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: writable for LANES f32 by contract.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        let mut out = addend;
        for ((out, a), b) in out.0.iter_mut().zip(self.0).zip(factor.0) {
            // Where the target has no fused instruction, `f32::mul_add` would be a library call.
            *out = if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
                a.mul_add(b, *out)
            } else {
                a * b + *out
            };
        }
        out
    }

    #[inline(always)]
    fn pow2_of_biased(mut self) -> Self {
        for x in &mut self.0 {
            *x = f32::from_bits(x.to_bits().wrapping_add(127) << 23);
        }
        self
    }

    #[inline(always)]
    fn shift_right(words: PortableWords, bits: u32) -> PortableWords {
        words.map(|word| word >> bits)
    }

    #[inline(always)]
    fn shift_left(words: PortableWords, bits: u32) -> PortableWords {
        words.map(|word| word << bits)
    }

    #[inline(always)]
    fn and(words: PortableWords, mask: u32) -> PortableWords {
        words.map(|word| word & mask)
    }

    #[inline(always)]
    fn or(mut a: PortableWords, b: PortableWords) -> PortableWords {
        for (a, b) in a.0.iter_mut().zip(b.0) {
            *a |= b;
        }
        a
    }

    #[inline(always)]
    fn or_where(mut words: PortableWords, lanes: u32, value: u32) -> PortableWords {
        for (lane, word) in words.0.iter_mut().enumerate() {
            *word |= (lanes >> lane & 1) * value;
        }
        words
    }

    #[inline(always)]
    fn nibble_table(scale: Self, min: Self) -> (Self, Self) {
        (scale, min)
    }

    #[inline(always)]
    fn nibble_values((scale, min): (Self, Self), words: PortableWords) -> Self {
        Self::to_f32(Self::and(words, 15)).mul_add(scale, min)
    }

    #[inline(always)]
    fn lookup(words: PortableWords, table: [u8; 16]) -> PortableWords {
        PortableWords(words.0.map(|word| {
            u32::from_le_bytes(word.to_le_bytes().map(|byte| table[usize::from(byte & 15)]))
        }))
    }

    #[inline(always)]
    fn to_f32(words: PortableWords) -> Self {
        let mut out = [0.0; LANES];
        for (out, word) in out.iter_mut().zip(words.0) {
            *out = word as i32 as f32;
        }
        Portable(out)
    }

    #[inline(always)]
    fn sum4(mut registers: [Self; 4]) -> [f32; 4] {
        let mut width = LANES / 2;
        while width > 0 {
            for register in &mut registers {
                for lane in 0..width {
                    register.0[lane] += register.0[lane + width];
                }
            }
            width /= 2;
        }
        let [a, b, c, d] = registers;
        [a.0[0], b.0[0], c.0[0], d.0[0]]
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

impl Bytes for Portable {
    const BYTE_TILE_ROWS: usize = 2;

    #[inline(never)]
    unsafe fn load_columns(rows: &[*const u8; MAX_LANES], at: usize) -> [PortableWords; 4] {
        let mut columns = [PortableWords([0; LANES]); 4];
        for (lane, row) in rows.iter().enumerate() {
            // SAFETY: readable for `at + 16` bytes by contract.
            let words = unsafe { row.add(at).cast::<[u32; 4]>().read_unaligned() };
            for (column, word) in columns.iter_mut().zip(words) {
                column.0[lane] = u32::from_le(word);
            }
        }
        columns
    }

    #[inline(always)]
    fn low_half(words: PortableWords) -> Self {
        Portable(words.0.map(|word| widen_f16(word as u16)))
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> PortableWords {
        // SAFETY: readable for LANES integers by contract.
        PortableWords(unsafe { p.cast::<[u32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store_words(words: PortableWords, p: *mut u32) {
        // SAFETY: writable for LANES integers by contract.
        unsafe { p.cast::<[u32; LANES]>().write(words.0) }
    }

    #[inline(always)]
    unsafe fn splat_word(p: *const u8) -> PortableWords {
        // SAFETY: readable for 4 bytes by contract.
        PortableWords([u32::from_le(unsafe { p.cast::<u32>().read_unaligned() }); LANES])
    }

    #[inline(always)]
    fn xor(words: PortableWords, mask: u32) -> PortableWords {
        words.map(|word| word ^ mask)
    }

    #[inline(always)]
    fn signed_byte(words: PortableWords, byte: u32) -> PortableWords {
        words.map(|word| i32::from((word >> (8 * byte)) as i8) as u32)
    }

    #[inline(always)]
    fn dot_halves(words: PortableWords, [a, b]: [i16; 2]) -> PortableWords {
        let product = |half: u32, factor: i16| i32::from(half as u16 as i16) * i32::from(factor);
        words.map(|word| (product(word, a) + product(word >> 16, b)) as u32)
    }
}

/// Products of bytes in plain Rust.
pub struct PlainDot;

impl ByteDot<Portable> for PlainDot {
    // Out of line, as `load_columns`: unrolled over the words of a block, the code of one product
    // has 200 KB, and takes minutes to compile.
    #[inline(never)]
    unsafe fn dot(
        mut sum: PortableWords,
        q: PortableWords,
        x: PortableWords,
        _wide: bool,
    ) -> PortableWords {
        for byte in [0, 8, 16, 24] {
            for ((sum, q), x) in sum.0.iter_mut().zip(q.0).zip(x.0) {
                let product = (q >> byte & 0xff) as i32 * i32::from((x >> byte) as i8);
                *sum = sum.wrapping_add(product as u32);
            }
        }
        sum
    }
}

/// Products of pairs of bf16 in plain Rust.
pub struct PlainPairs;

impl PairDot<Portable> for PlainPairs {
    #[inline(always)]
    unsafe fn dot(mut sum: Portable, w: Portable, x: Portable) -> Portable {
        for ((sum, w), x) in sum.0.iter_mut().zip(w.0).zip(x.0) {
            let values = |pair: f32| {
                [pair.to_bits() << 16, pair.to_bits() & 0xffff_0000].map(f32::from_bits)
            };
            let ([w0, w1], [x0, x1]) = (values(w), values(x));
            *sum += w0 * x0 + w1 * x1;
        }
        sum
    }
}
