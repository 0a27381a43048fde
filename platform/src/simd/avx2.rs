//! 8 lanes: AVX2, FMA and F16C; products of bytes by AVX-VNNI where the CPU has it.

use std::arch::x86_64::*;

use super::{ByteDot, Bytes, MAX_LANES, Simd};

/// Eight f32 in a YMM register.
#[derive(Clone, Copy)]
pub struct Avx2(__m256);

/// Eight 32-bit integers.
#[derive(Clone, Copy)]
pub struct Avx2Words(__m256i);

/// Runs AVX2 intrinsics on registers.
macro_rules! avx2 {
    ($e:expr) => {
        // SAFETY: an `Avx2` exists, or the caller of the constructor guarantees it: the CPU has
        // AVX2, FMA and F16C. A constructor's pointer is readable by its contract.
        unsafe { $e }
    };
}

impl Simd for Avx2 {
    type Words = Avx2Words;
    type NibbleTable = (Self, Self);

    const LANES: usize = 8;
    // 3 x 4 accumulators + 3 activations + 1 weight = 16 registers.
    const TILE_ROWS: usize = 3;
    const NARROW_TILE_ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Avx2(avx2!(_mm256_set1_ps(x)))
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Avx2(avx2!(_mm256_loadu_ps(p)))
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Self {
        Avx2(avx2!(_mm256_loadu_ps(p.cast())))
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Avx2(avx2!(_mm256_cvtph_ps(_mm_loadu_si128(p.cast()))))
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self {
        Avx2(avx2!(_mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned()))))
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        let words = avx2!(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())));
        Avx2(avx2!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))))
    }

    #[inline(always)]
    unsafe fn load_bf16_even(p: *const u8) -> Self {
        let pairs = avx2!(_mm256_loadu_si256(p.cast()));
        Avx2(avx2!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))))
    }

    #[inline(always)]
    unsafe fn load_bf16_odd(p: *const u8) -> Self {
        let pairs = avx2!(_mm256_loadu_si256(p.cast()));
        let upper = avx2!(_mm256_set1_epi32(0xffff_0000_u32 as i32));
        Avx2(avx2!(_mm256_castsi256_ps(_mm256_and_si256(pairs, upper))))
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Avx2Words {
        Avx2Words(avx2!(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Avx2Words {
        Avx2Words(avx2!(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is writable for 8 f32 by contract.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Avx2(avx2!(_mm256_add_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Avx2(avx2!(_mm256_sub_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Avx2(avx2!(_mm256_mul_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Avx2(avx2!(_mm256_div_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Avx2(avx2!(_mm256_max_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Avx2(avx2!(_mm256_min_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Avx2(avx2!(_mm256_fmadd_ps(self.0, factor.0, addend.0)))
    }

    #[inline(always)]
    fn pow2_of_biased(self) -> Self {
        avx2!({
            let exponent = _mm256_add_epi32(_mm256_castps_si256(self.0), _mm256_set1_epi32(127));
            Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn shift_right(words: Avx2Words, bits: u32) -> Avx2Words {
        Avx2Words(avx2!(_mm256_srl_epi32(words.0, _mm_cvtsi32_si128(bits as i32))))
    }

    #[inline(always)]
    fn shift_left(words: Avx2Words, bits: u32) -> Avx2Words {
        Avx2Words(avx2!(_mm256_sll_epi32(words.0, _mm_cvtsi32_si128(bits as i32))))
    }

    #[inline(always)]
    fn and(words: Avx2Words, mask: u32) -> Avx2Words {
        Avx2Words(avx2!(_mm256_and_si256(words.0, _mm256_set1_epi32(mask as i32))))
    }

    #[inline(always)]
    fn or(a: Avx2Words, b: Avx2Words) -> Avx2Words {
        Avx2Words(avx2!(_mm256_or_si256(a.0, b.0)))
    }

    #[inline(always)]
    fn or_where(words: Avx2Words, lanes: u32, value: u32) -> Avx2Words {
        avx2!({
            let places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let set = _mm256_and_si256(_mm256_set1_epi32(lanes as i32), places);
            let set = _mm256_cmpeq_epi32(set, places);
            let value = _mm256_and_si256(set, _mm256_set1_epi32(value as i32));
            Avx2Words(_mm256_or_si256(words.0, value))
        })
    }

    #[inline(always)]
    fn nibble_table(scale: Self, min: Self) -> (Self, Self) {
        (scale, min)
    }

    #[inline(always)]
    fn nibble_values((scale, min): (Self, Self), words: Avx2Words) -> Self {
        Self::to_f32(Self::and(words, 15)).mul_add(scale, min)
    }

    #[inline(always)]
    fn lookup(words: Avx2Words, table: [u8; 16]) -> Avx2Words {
        avx2!({
            let table = std::mem::transmute::<[u8; 16], __m128i>(table);
            Avx2Words(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), words.0))
        })
    }

    #[inline(always)]
    fn to_f32(words: Avx2Words) -> Self {
        Avx2(avx2!(_mm256_cvtepi32_ps(words.0)))
    }

    #[inline(always)]
    fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        avx2!({
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(a.0, b.0), _mm256_hadd_ps(c.0, d.0));
            let sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        })
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        avx2!({
            let m4 = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
            _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps::<1>(m2, m2)))
        })
    }
}

impl Bytes for Avx2 {
    // 4 x 2 integer sums, 2 weights, 1 activation, temporaries; the f32 sums stay in L1.
    const BYTE_TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn load_columns(rows: &[*const u8; MAX_LANES], at: usize) -> [Avx2Words; 4] {
        // Macros, as a closure need not be inlined.
        macro_rules! row {
            ($i:expr) => {
                _mm_loadu_si128(rows[$i].add(at).cast())
            };
        }
        macro_rules! halves {
            ($i:literal) => {
                _mm256_set_m128i(row!($i + 4), row!($i))
            };
        }
        avx2!({
            let (a, b, c, d) = (halves!(0), halves!(1), halves!(2), halves!(3));
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                Avx2Words(_mm256_unpacklo_epi64(ab, cd)),
                Avx2Words(_mm256_unpackhi_epi64(ab, cd)),
                Avx2Words(_mm256_unpacklo_epi64(ab_high, cd_high)),
                Avx2Words(_mm256_unpackhi_epi64(ab_high, cd_high)),
            ]
        })
    }

    #[inline(always)]
    fn low_half(words: Avx2Words) -> Self {
        avx2!({
            let words = _mm256_and_si256(words.0, _mm256_set1_epi32(0xffff));
            let high = _mm256_extracti128_si256::<1>(words);
            Avx2(_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(words), high)))
        })
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Avx2Words {
        Avx2Words(avx2!(_mm256_loadu_si256(p.cast())))
    }

    #[inline(always)]
    unsafe fn store_words(words: Avx2Words, p: *mut u32) {
        // SAFETY: `p` is writable for 8 integers by contract.
        unsafe { _mm256_storeu_si256(p.cast(), words.0) }
    }

    #[inline(always)]
    unsafe fn splat_word(p: *const u8) -> Avx2Words {
        Avx2Words(avx2!(_mm256_set1_epi32(p.cast::<i32>().read_unaligned())))
    }

    #[inline(always)]
    fn xor(words: Avx2Words, mask: u32) -> Avx2Words {
        Avx2Words(avx2!(_mm256_xor_si256(words.0, _mm256_set1_epi32(mask as i32))))
    }

    #[inline(always)]
    fn signed_byte(words: Avx2Words, byte: u32) -> Avx2Words {
        let left = Self::shift_left(words, 24 - 8 * byte);
        Avx2Words(avx2!(_mm256_srai_epi32::<24>(left.0)))
    }

    #[inline(always)]
    fn dot_halves(words: Avx2Words, [a, b]: [i16; 2]) -> Avx2Words {
        let factors = i32::from(a) & 0xffff | i32::from(b) << 16;
        Avx2Words(avx2!(_mm256_madd_epi16(words.0, _mm256_set1_epi32(factors))))
    }
}

/// `vpdpbusd` on YMM registers: AVX-VNNI.
pub struct AvxVnni;

impl ByteDot<Avx2> for AvxVnni {
    #[inline(always)]
    unsafe fn dot(sum: Avx2Words, q: Avx2Words, x: Avx2Words, _wide: bool) -> Avx2Words {
        // SAFETY: the caller guarantees AVX-VNNI.
        Avx2Words(unsafe { _mm256_dpbusd_avx_epi32(sum.0, q.0, x.0) })
    }
}

/// `vpdpbusd` on YMM registers: AVX-512 VL and VNNI.
pub struct Avx512VlVnni;

impl ByteDot<Avx2> for Avx512VlVnni {
    #[inline(always)]
    unsafe fn dot(sum: Avx2Words, q: Avx2Words, x: Avx2Words, _wide: bool) -> Avx2Words {
        // SAFETY: the caller guarantees AVX-512 VL and VNNI.
        Avx2Words(unsafe { _mm256_dpbusd_epi32(sum.0, q.0, x.0) })
    }
}

/// `vpmaddubsw` on YMM registers: AVX2.
pub struct Maddubs;

impl ByteDot<Avx2> for Maddubs {
    #[inline(always)]
    unsafe fn dot(sum: Avx2Words, q: Avx2Words, x: Avx2Words, wide: bool) -> Avx2Words {
        avx2!({
            let (ones, low) = (_mm256_set1_epi16(1), _mm256_set1_epi16(0xff));
            if !wide {
                let pairs = _mm256_maddubs_epi16(q.0, x.0);
                return Avx2Words(_mm256_add_epi32(sum.0, _mm256_madd_epi16(pairs, ones)));
            }
            // Two products of q above 127 can exceed 16 bits: one at a time.
            let even = _mm256_maddubs_epi16(_mm256_and_si256(low, q.0), x.0);
            let odd = _mm256_maddubs_epi16(_mm256_andnot_si256(low, q.0), x.0);
            let sum = _mm256_add_epi32(sum.0, _mm256_madd_epi16(even, ones));
            Avx2Words(_mm256_add_epi32(sum, _mm256_madd_epi16(odd, ones)))
        })
    }
}
