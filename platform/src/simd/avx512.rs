//! 16 lanes: AVX-512F, BW and VL; products of bytes by VNNI and of bf16 by BF16 where the CPU has
//! them.

use std::arch::x86_64::*;

use super::{ByteDot, Bytes, MAX_LANES, PairDot, Simd};

/// Sixteen f32 in a ZMM register.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

/// Sixteen 32-bit integers.
#[derive(Clone, Copy)]
pub struct Avx512Words(__m512i);

/// Runs AVX-512 intrinsics on registers.
macro_rules! avx512 {
    ($e:expr) => {
        // SAFETY: an `Avx512` exists, or the caller of the constructor guarantees it: the CPU has
        // AVX-512F and BW. A constructor's pointer is readable by its contract.
        unsafe { $e }
    };
}

impl Simd for Avx512 {
    type Words = Avx512Words;
    type NibbleTable = Self;

    const LANES: usize = 16;
    // 6 x 4 accumulators + 6 activations + 1 weight = 31 of 32 registers.
    const TILE_ROWS: usize = 6;
    const NARROW_TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Avx512(avx512!(_mm512_set1_ps(x)))
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Avx512(avx512!(_mm512_loadu_ps(p)))
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Self {
        Avx512(avx512!(_mm512_loadu_ps(p.cast())))
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Avx512(avx512!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))))
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self {
        Avx512(avx512!(_mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned()))))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        let words = avx512!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())));
        Avx512(avx512!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))))
    }

    #[inline(always)]
    unsafe fn load_bf16_even(p: *const u8) -> Self {
        let pairs = avx512!(_mm512_loadu_si512(p.cast()));
        Avx512(avx512!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))))
    }

    #[inline(always)]
    unsafe fn load_bf16_odd(p: *const u8) -> Self {
        let pairs = avx512!(_mm512_loadu_si512(p.cast()));
        let upper = avx512!(_mm512_set1_epi32(0xffff_0000_u32 as i32));
        Avx512(avx512!(_mm512_castsi512_ps(_mm512_and_si512(pairs, upper))))
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Avx512Words {
        Avx512Words(avx512!(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Avx512Words {
        Avx512Words(avx512!(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is writable for 16 f32 by contract.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Avx512(avx512!(_mm512_add_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Avx512(avx512!(_mm512_sub_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Avx512(avx512!(_mm512_mul_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Avx512(avx512!(_mm512_div_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Avx512(avx512!(_mm512_max_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Avx512(avx512!(_mm512_min_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Avx512(avx512!(_mm512_fmadd_ps(self.0, factor.0, addend.0)))
    }

    #[inline(always)]
    fn pow2_of_biased(self) -> Self {
        avx512!({
            let exponent = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(127));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn shift_right(words: Avx512Words, bits: u32) -> Avx512Words {
        Avx512Words(avx512!(_mm512_srl_epi32(words.0, _mm_cvtsi32_si128(bits as i32))))
    }

    #[inline(always)]
    fn shift_left(words: Avx512Words, bits: u32) -> Avx512Words {
        Avx512Words(avx512!(_mm512_sll_epi32(words.0, _mm_cvtsi32_si128(bits as i32))))
    }

    #[inline(always)]
    fn and(words: Avx512Words, mask: u32) -> Avx512Words {
        Avx512Words(avx512!(_mm512_and_si512(words.0, _mm512_set1_epi32(mask as i32))))
    }

    #[inline(always)]
    fn or(a: Avx512Words, b: Avx512Words) -> Avx512Words {
        Avx512Words(avx512!(_mm512_or_si512(a.0, b.0)))
    }

    #[inline(always)]
    fn or_where(words: Avx512Words, lanes: u32, value: u32) -> Avx512Words {
        let value = avx512!(_mm512_set1_epi32(value as i32));
        Avx512Words(avx512!(_mm512_mask_or_epi32(words.0, lanes as u16, words.0, value)))
    }

    #[inline(always)]
    fn nibble_table(scale: Self, min: Self) -> Self {
        let integers = avx512!(_mm512_setr_ps(
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0
        ));
        Avx512(integers).mul_add(scale, min)
    }

    #[inline(always)]
    fn nibble_values(table: Self, words: Avx512Words) -> Self {
        // The permutation reads the lowest four bits of each index alone.
        Avx512(avx512!(_mm512_permutexvar_ps(words.0, table.0)))
    }

    #[inline(always)]
    fn lookup(words: Avx512Words, table: [u8; 16]) -> Avx512Words {
        avx512!({
            let table = std::mem::transmute::<[u8; 16], __m128i>(table);
            Avx512Words(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), words.0))
        })
    }

    #[inline(always)]
    fn to_f32(words: Avx512Words) -> Self {
        Avx512(avx512!(_mm512_cvtepi32_ps(words.0)))
    }

    #[inline(always)]
    fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // Transposes 4 x 4 lanes within each quarter, then adds the quarters.
        avx512!({
            let (ab, cd) = (_mm512_unpacklo_ps(a.0, b.0), _mm512_unpacklo_ps(c.0, d.0));
            let (ab_high, cd_high) = (_mm512_unpackhi_ps(a.0, b.0), _mm512_unpackhi_ps(c.0, d.0));
            let (ab, cd) = (_mm512_add_ps(ab, ab_high), _mm512_add_ps(cd, cd_high));
            let quarters =
                _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
            let (q0, q1) =
                (_mm512_castps512_ps128(quarters), _mm512_extractf32x4_ps::<1>(quarters));
            let q2 = _mm512_extractf32x4_ps::<2>(quarters);
            let q3 = _mm512_extractf32x4_ps::<3>(quarters);
            let sums = _mm_add_ps(_mm_add_ps(q0, q1), _mm_add_ps(q2, q3));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        })
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        avx512!(_mm512_reduce_max_ps(self.0))
    }
}

impl Bytes for Avx512 {
    // 6 x 2 integer sums, 6 x 2 of f32, 2 weights, 1 activation, 3 temporaries: 30 registers.
    const BYTE_TILE_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn load_columns(rows: &[*const u8; MAX_LANES], at: usize) -> [Avx512Words; 4] {
        // Quarter q of register i holds row 4 q + i. Macros, as a closure need not be inlined.
        macro_rules! row {
            ($i:expr) => {
                _mm_loadu_si128(rows[$i].add(at).cast())
            };
        }
        macro_rules! quarters {
            ($i:literal) => {{
                let quarters = _mm512_castsi128_si512(row!($i));
                let quarters = _mm512_inserti32x4::<1>(quarters, row!($i + 4));
                let quarters = _mm512_inserti32x4::<2>(quarters, row!($i + 8));
                _mm512_inserti32x4::<3>(quarters, row!($i + 12))
            }};
        }
        avx512!({
            let (a, b, c, d) = (quarters!(0), quarters!(1), quarters!(2), quarters!(3));
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                Avx512Words(_mm512_unpacklo_epi64(ab, cd)),
                Avx512Words(_mm512_unpackhi_epi64(ab, cd)),
                Avx512Words(_mm512_unpacklo_epi64(ab_high, cd_high)),
                Avx512Words(_mm512_unpackhi_epi64(ab_high, cd_high)),
            ]
        })
    }

    #[inline(always)]
    fn low_half(words: Avx512Words) -> Self {
        Avx512(avx512!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words.0))))
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Avx512Words {
        Avx512Words(avx512!(_mm512_loadu_si512(p.cast())))
    }

    #[inline(always)]
    unsafe fn store_words(words: Avx512Words, p: *mut u32) {
        // SAFETY: `p` is writable for 16 integers by contract.
        unsafe { _mm512_storeu_si512(p.cast(), words.0) }
    }

    #[inline(always)]
    unsafe fn splat_word(p: *const u8) -> Avx512Words {
        Avx512Words(avx512!(_mm512_set1_epi32(p.cast::<i32>().read_unaligned())))
    }

    #[inline(always)]
    fn xor(words: Avx512Words, mask: u32) -> Avx512Words {
        Avx512Words(avx512!(_mm512_xor_si512(words.0, _mm512_set1_epi32(mask as i32))))
    }

    #[inline(always)]
    fn signed_byte(words: Avx512Words, byte: u32) -> Avx512Words {
        let left = Self::shift_left(words, 24 - 8 * byte);
        Avx512Words(avx512!(_mm512_srai_epi32::<24>(left.0)))
    }

    #[inline(always)]
    fn spread_bits(words: Avx512Words) -> Avx512Words {
        avx512!({
            // The permutation reads the lowest four bits of each index alone.
            let spread = _mm512_setr_epi32(
                0,
                0x10,
                0x1000,
                0x1010,
                0x10_0000,
                0x10_0010,
                0x10_1000,
                0x10_1010,
                0x1000_0000,
                0x1000_0010,
                0x1000_1000,
                0x1000_1010,
                0x1010_0000,
                0x1010_0010,
                0x1010_1000,
                0x1010_1010,
            );
            Avx512Words(_mm512_permutexvar_epi32(words.0, spread))
        })
    }

    #[inline(always)]
    fn dot_halves(words: Avx512Words, [a, b]: [i16; 2]) -> Avx512Words {
        let factors = i32::from(a) & 0xffff | i32::from(b) << 16;
        Avx512Words(avx512!(_mm512_madd_epi16(words.0, _mm512_set1_epi32(factors))))
    }
}

/// `vpdpbusd` on ZMM registers: AVX-512 VNNI.
pub struct Avx512Vnni;

impl ByteDot<Avx512> for Avx512Vnni {
    #[inline(always)]
    unsafe fn dot(sum: Avx512Words, q: Avx512Words, x: Avx512Words, _wide: bool) -> Avx512Words {
        // SAFETY: the caller guarantees AVX-512 VNNI.
        Avx512Words(unsafe { _mm512_dpbusd_epi32(sum.0, q.0, x.0) })
    }
}

/// `vdpbf16ps` on ZMM registers: AVX-512 BF16.
pub struct Avx512Bf16;

impl PairDot<Avx512> for Avx512Bf16 {
    #[inline(always)]
    unsafe fn dot(sum: Avx512, w: Avx512, x: Avx512) -> Avx512 {
        // SAFETY: the caller guarantees AVX-512 BF16; the types have the same bits.
        unsafe {
            let [w, x] = [w, x].map(|pairs| std::mem::transmute::<__m512, __m512bh>(pairs.0));
            Avx512(_mm512_dpbf16_ps(sum.0, w, x))
        }
    }
}

/// `vpmaddubsw` on ZMM registers: AVX-512BW.
pub struct Maddubs512;

impl ByteDot<Avx512> for Maddubs512 {
    #[inline(always)]
    unsafe fn dot(sum: Avx512Words, q: Avx512Words, x: Avx512Words, wide: bool) -> Avx512Words {
        avx512!({
            let (ones, low) = (_mm512_set1_epi16(1), _mm512_set1_epi16(0xff));
            if !wide {
                let pairs = _mm512_maddubs_epi16(q.0, x.0);
                return Avx512Words(_mm512_add_epi32(sum.0, _mm512_madd_epi16(pairs, ones)));
            }
            // Two products of q above 127 can exceed 16 bits: one at a time.
            let even = _mm512_maddubs_epi16(_mm512_and_si512(low, q.0), x.0);
            let odd = _mm512_maddubs_epi16(_mm512_andnot_si512(low, q.0), x.0);
            let sum = _mm512_add_epi32(sum.0, _mm512_madd_epi16(even, ones));
            Avx512Words(_mm512_add_epi32(sum, _mm512_madd_epi16(odd, ones)))
        })
    }
}
