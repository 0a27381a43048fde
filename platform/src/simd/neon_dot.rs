//! Products of bytes in registers of NEON: by the dot-product or the int8 matrix extension where
//! the CPU has them. Both are written in assembly, as their intrinsics are not stable in Rust.

use std::arch::aarch64::*;
use std::arch::asm;

use super::ByteDot;
use super::neon::{Neon, NeonWords};

/// An instruction that multiplies signed bytes.
trait SignedDot {
    /// `sum` and the products of each lane's four signed bytes; `a` is above -128.
    ///
    /// # Safety
    ///
    /// The CPU has the instruction.
    unsafe fn signed(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t;
}

/// Sums of widened products: any CPU with NEON.
pub struct NeonMull;

impl SignedDot for NeonMull {
    #[inline(always)]
    unsafe fn signed(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees NEON.
        unsafe {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            let high = vpaddlq_s16(vmull_high_s8(a, b));
            vaddq_s32(sum, vpaddq_s32(low, high))
        }
    }
}

/// `sdot`: FEAT_DotProd, Armv8.2.
pub struct NeonDotprod;

impl SignedDot for NeonDotprod {
    #[inline(always)]
    unsafe fn signed(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees the instruction, which reads and writes registers alone.
        // The directive lets the assembler accept it in a copy that was not inlined.
        unsafe {
            asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                 sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
                 options(pure, nomem, nostack, preserves_flags));
        }
        sum
    }
}

/// Products of unsigned with signed bytes by an instruction for signed ones.
impl<T: SignedDot> ByteDot<Neon> for T {
    #[inline(always)]
    unsafe fn dot(mut sum: NeonWords, q: NeonWords, x: NeonWords, wide: bool) -> NeonWords {
        // SAFETY: the caller guarantees NEON and the instruction.
        unsafe {
            for i in 0..2 {
                let x = vreinterpretq_s8_u32(x.0[i]);
                let (q, old) = (vreinterpretq_u8_u32(q.0[i]), vreinterpretq_s32_u32(sum.0[i]));
                let new = if wide {
                    // The highest bit is not a sign here: its products come apart.
                    let (low, high) = (vandq_u8(q, vdupq_n_u8(127)), vshrq_n_u8::<7>(q));
                    let high = T::signed(vdupq_n_s32(0), vreinterpretq_s8_u8(high), x);
                    let low = T::signed(old, vreinterpretq_s8_u8(low), x);
                    vaddq_s32(low, vshlq_n_s32::<7>(high))
                } else {
                    T::signed(old, vreinterpretq_s8_u8(q), x)
                };
                sum.0[i] = vreinterpretq_u32_s32(new);
            }
        }
        sum
    }
}

/// `usdot`: FEAT_I8MM, Armv8.6.
pub struct NeonI8mm;

impl ByteDot<Neon> for NeonI8mm {
    #[inline(always)]
    unsafe fn dot(mut sum: NeonWords, q: NeonWords, x: NeonWords, _wide: bool) -> NeonWords {
        for (sum, (q, x)) in sum.0.iter_mut().zip(q.0.into_iter().zip(x.0)) {
            // SAFETY: the caller guarantees the instruction, which reads and writes registers
            // alone. The directive lets the assembler accept it in a copy that was not inlined.
            unsafe {
                asm!(".arch_extension i8mm", "usdot {sum:v}.4s, {q:v}.16b, {x:v}.16b",
                     sum = inout(vreg) *sum, q = in(vreg) q, x = in(vreg) x,
                     options(pure, nomem, nostack, preserves_flags));
            }
        }
        sum
    }
}
