//! 8 lanes in two registers of Arm's Advanced SIMD (NEON).
//!
//! Two registers, since a K type's eight scales fill one `Words`, and since one chain of
//! multiply-adds a sum would wait for its latency. A sum has the tree of `avx2.rs`: the bits are
//! the same. Instructions whose intrinsics are not stable in Rust are written in assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Bytes, MAX_LANES, Simd};

/// Eight f32.
#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 2]);

/// Eight 32-bit integers.
#[derive(Clone, Copy)]
pub struct NeonWords(pub(super) [uint32x4_t; 2]);

/// Runs NEON intrinsics on registers.
macro_rules! neon {
    ($e:expr) => {
        // SAFETY: a `Neon` exists, or the caller of the constructor guarantees it: the CPU has
        // NEON. A constructor's pointer is readable by its contract.
        unsafe { $e }
    };
}

/// Applies an intrinsic to both registers of one or more operands.
macro_rules! both {
    ($f:path, $a:expr $(, $rest:expr)*) => {
        [$f($a[0] $(, $rest[0])*), $f($a[1] $(, $rest[1])*)]
    };
}

/// Four half-precision values, widened.
///
/// # Safety
///
/// The CPU has NEON.
#[inline(always)]
unsafe fn widen_f16(half: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: FCVTL is part of NEON, and reads and writes registers alone.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {half:v}.4h", wide = lateout(vreg) wide, half = in(vreg) half,
             options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

impl Simd for Neon {
    type Words = NeonWords;
    type NibbleTable = (Self, Self);

    const LANES: usize = 8;
    // 3 x 4 accumulators + 3 activations + 1 weight = 16 pairs of registers.
    const TILE_ROWS: usize = 3;
    const NARROW_TILE_ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Neon([neon!(vdupq_n_f32(x)); 2])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Neon(neon!([vld1q_f32(p), vld1q_f32(p.add(4))]))
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Self {
        // SAFETY: readable for 32 bytes by contract; the loads need no alignment.
        unsafe { Self::load(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Neon(neon!([widen_f16(vld1_u16(p.cast())), widen_f16(vld1_u16(p.add(8).cast()))]))
    }

    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self {
        Neon([neon!(widen_f16(vdup_n_u16(p.cast::<u16>().read_unaligned()))); 2])
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        neon!({
            let halves = vld1q_u16(p.cast());
            let words = [vshll_n_u16::<16>(vget_low_u16(halves)), vshll_high_n_u16::<16>(halves)];
            Neon(both!(vreinterpretq_f32_u32, words))
        })
    }

    #[inline(always)]
    unsafe fn load_bf16_even(p: *const u8) -> Self {
        // SAFETY: readable for 32 bytes by contract; the loads need no alignment.
        let words = unsafe { Self::load_words(p.cast()) };
        Neon(neon!(both!(vreinterpretq_f32_u32, Self::shift_left(words, 16).0)))
    }

    #[inline(always)]
    unsafe fn load_bf16_odd(p: *const u8) -> Self {
        // SAFETY: readable for 32 bytes by contract; the loads need no alignment.
        let words = unsafe { Self::load_words(p.cast()) };
        Neon(neon!(both!(vreinterpretq_f32_u32, Self::and(words, 0xffff_0000).0)))
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> NeonWords {
        neon!({
            let halves = vmovl_u8(vld1_u8(p));
            NeonWords([vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves)])
        })
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> NeonWords {
        neon!({
            let halves = vmovl_s8(vld1_s8(p.cast()));
            let words = [vmovl_s16(vget_low_s16(halves)), vmovl_high_s16(halves)];
            NeonWords(both!(vreinterpretq_u32_s32, words))
        })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: `p` is writable for 8 f32 by contract.
        unsafe {
            vst1q_f32(p, self.0[0]);
            vst1q_f32(p.add(4), self.0[1]);
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Neon(neon!(both!(vaddq_f32, self.0, other.0)))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Neon(neon!(both!(vsubq_f32, self.0, other.0)))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Neon(neon!(both!(vmulq_f32, self.0, other.0)))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Neon(neon!(both!(vdivq_f32, self.0, other.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Neon(neon!(both!(vmaxq_f32, self.0, other.0)))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Neon(neon!(both!(vminq_f32, self.0, other.0)))
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Neon(neon!(both!(vfmaq_f32, addend.0, self.0, factor.0)))
    }

    #[inline(always)]
    fn pow2_of_biased(self) -> Self {
        neon!({
            let bias = [vdupq_n_u32(127); 2];
            let exponent = both!(vaddq_u32, both!(vreinterpretq_u32_f32, self.0), bias);
            Neon(both!(vreinterpretq_f32_u32, both!(vshlq_n_u32::<23>, exponent)))
        })
    }

    #[inline(always)]
    fn shift_right(words: NeonWords, bits: u32) -> NeonWords {
        NeonWords(neon!(both!(vshlq_u32, words.0, [vdupq_n_s32(-(bits as i32)); 2])))
    }

    #[inline(always)]
    fn shift_left(words: NeonWords, bits: u32) -> NeonWords {
        NeonWords(neon!(both!(vshlq_u32, words.0, [vdupq_n_s32(bits as i32); 2])))
    }

    #[inline(always)]
    fn and(words: NeonWords, mask: u32) -> NeonWords {
        NeonWords(neon!(both!(vandq_u32, words.0, [vdupq_n_u32(mask); 2])))
    }

    #[inline(always)]
    fn or(a: NeonWords, b: NeonWords) -> NeonWords {
        NeonWords(neon!(both!(vorrq_u32, a.0, b.0)))
    }

    #[inline(always)]
    fn or_where(words: NeonWords, lanes: u32, value: u32) -> NeonWords {
        const PLACES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
        neon!({
            let places = [vld1q_u32(PLACES.as_ptr()), vld1q_u32(PLACES[4..].as_ptr())];
            let set = both!(vtstq_u32, [vdupq_n_u32(lanes); 2], places);
            Self::or(words, NeonWords(both!(vandq_u32, set, [vdupq_n_u32(value); 2])))
        })
    }

    #[inline(always)]
    fn nibble_table(scale: Self, min: Self) -> (Self, Self) {
        (scale, min)
    }

    #[inline(always)]
    fn nibble_values((scale, min): (Self, Self), words: NeonWords) -> Self {
        Self::to_f32(Self::and(words, 15)).mul_add(scale, min)
    }

    #[inline(always)]
    fn lookup(words: NeonWords, table: [u8; 16]) -> NeonWords {
        let of = |words| {
            neon!({
                let table = std::mem::transmute::<[u8; 16], uint8x16_t>(table);
                vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(words)))
            })
        };
        NeonWords(words.0.map(of))
    }

    #[inline(always)]
    fn to_f32(words: NeonWords) -> Self {
        Neon(neon!(both!(vcvtq_f32_s32, both!(vreinterpretq_s32_u32, words.0))))
    }

    #[inline(always)]
    fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        neon!({
            let (ab, cd) = (both!(vpaddq_f32, a.0, b.0), both!(vpaddq_f32, c.0, d.0));
            let [low, high] = both!(vpaddq_f32, ab, cd);
            let mut sums = [0.0; 4];
            vst1q_f32(sums.as_mut_ptr(), vaddq_f32(low, high));
            sums
        })
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        neon!(vmaxvq_f32(vmaxq_f32(self.0[0], self.0[1])))
    }
}

/// 16 bytes of each of four rows, transposed: vector d holds bytes `4 d..4 d + 4` of every row.
///
/// # Safety
///
/// The rows are readable for `at + 16` bytes, and the CPU has NEON.
#[inline(always)]
unsafe fn columns_of_four(rows: &[*const u8], at: usize) -> [uint32x4_t; 4] {
    // Macros, as a closure need not be inlined.
    macro_rules! row {
        ($i:literal) => {
            vreinterpretq_u32_u8(vld1q_u8(rows[$i].add(at)))
        };
    }
    macro_rules! join {
        ($f:ident, $a:expr, $b:expr) => {
            vreinterpretq_u32_u64($f(vreinterpretq_u64_u32($a), vreinterpretq_u64_u32($b)))
        };
    }
    neon!({
        let (a, b, c, d) = (row!(0), row!(1), row!(2), row!(3));
        let (ab, ab_odd) = (vtrn1q_u32(a, b), vtrn2q_u32(a, b));
        let (cd, cd_odd) = (vtrn1q_u32(c, d), vtrn2q_u32(c, d));
        [
            join!(vtrn1q_u64, ab, cd),
            join!(vtrn1q_u64, ab_odd, cd_odd),
            join!(vtrn2q_u64, ab, cd),
            join!(vtrn2q_u64, ab_odd, cd_odd),
        ]
    })
}

impl Bytes for Neon {
    // As for AVX2: 4 x 2 integer sums, 2 weights, 1 activation, temporaries.
    const BYTE_TILE_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn load_columns(rows: &[*const u8; MAX_LANES], at: usize) -> [NeonWords; 4] {
        // SAFETY: the caller guarantees the rows and NEON.
        let (a, b) = unsafe { (columns_of_four(&rows[..4], at), columns_of_four(&rows[4..8], at)) };
        [
            NeonWords([a[0], b[0]]),
            NeonWords([a[1], b[1]]),
            NeonWords([a[2], b[2]]),
            NeonWords([a[3], b[3]]),
        ]
    }

    #[inline(always)]
    fn low_half(words: NeonWords) -> Self {
        Neon(neon!(both!(widen_f16, both!(vmovn_u32, words.0))))
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> NeonWords {
        NeonWords(neon!([vld1q_u32(p), vld1q_u32(p.add(4))]))
    }

    #[inline(always)]
    unsafe fn store_words(words: NeonWords, p: *mut u32) {
        // SAFETY: `p` is writable for 8 integers by contract.
        unsafe {
            vst1q_u32(p, words.0[0]);
            vst1q_u32(p.add(4), words.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn splat_word(p: *const u8) -> NeonWords {
        NeonWords([neon!(vdupq_n_u32(p.cast::<u32>().read_unaligned())); 2])
    }

    #[inline(always)]
    fn xor(words: NeonWords, mask: u32) -> NeonWords {
        NeonWords(neon!(both!(veorq_u32, words.0, [vdupq_n_u32(mask); 2])))
    }

    #[inline(always)]
    fn signed_byte(words: NeonWords, byte: u32) -> NeonWords {
        neon!({
            let left = both!(vreinterpretq_s32_u32, Self::shift_left(words, 24 - 8 * byte).0);
            NeonWords(both!(vreinterpretq_u32_s32, both!(vshrq_n_s32::<24>, left)))
        })
    }

    #[inline(always)]
    fn dot_halves(words: NeonWords, [a, b]: [i16; 2]) -> NeonWords {
        neon!({
            let low = both!(vreinterpretq_s32_u32, Self::shift_left(words, 16).0);
            let low = both!(vshrq_n_s32::<16>, low);
            let high = both!(vshrq_n_s32::<16>, both!(vreinterpretq_s32_u32, words.0));
            let (a, b) = ([vdupq_n_s32(a.into()); 2], [vdupq_n_s32(b.into()); 2]);
            let sum = both!(vmlaq_s32, both!(vmulq_s32, low, a), high, b);
            NeonWords(both!(vreinterpretq_u32_s32, sum))
        })
    }
}
