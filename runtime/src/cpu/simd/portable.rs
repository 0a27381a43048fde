//! 4 lanes in plain Rust, for any CPU; the compiler maps them onto SSE2, NEON and the like.

use super::Simd;

/// Four f32.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Portable(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    /// Reads four little-endian words and makes an f32 of each.
    ///
    /// # Safety
    ///
    /// `p` must be readable for 16 bytes.
    #[inline(always)]
    unsafe fn map_u32(p: *const u8, f: impl Fn(u32) -> f32) -> Self {
        // SAFETY: the caller's.
        let words = unsafe { p.cast::<[u32; 4]>().read_unaligned() };
        Portable(words.map(|w| f(u32::from_le(w))))
    }
}

/// Widens a half-precision value: exact, without branches, so that it vectorises.
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
    const LANES: usize = 4;
    const TILE_ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Portable([x; 4])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: readable for 4 f32 by contract.
        Portable(unsafe { p.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Self {
        // SAFETY: readable for 16 bytes by contract.
        unsafe { Self::map_u32(p, f32::from_bits) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: readable for 8 bytes by contract.
        let halves = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        Portable(halves.map(|h| widen_f16(u16::from_le(h))))
    }

    #[inline(always)]
    unsafe fn load_bf16_even(p: *const u8) -> Self {
        // SAFETY: readable for 16 bytes by contract.
        unsafe { Self::map_u32(p, |pair| f32::from_bits(pair << 16)) }
    }

    #[inline(always)]
    unsafe fn load_bf16_odd(p: *const u8) -> Self {
        // SAFETY: readable for 16 bytes by contract.
        unsafe { Self::map_u32(p, |pair| f32::from_bits(pair & 0xffff_0000)) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: writable for 4 f32 by contract.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(self.0) }
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
        // Where the target has no fused instruction, `f32::mul_add` would be a library call.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            Portable(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], addend.0[i])))
        } else {
            self.mul(factor).add(addend)
        }
    }

    #[inline(always)]
    fn pow2_of_biased(self) -> Self {
        Portable(self.0.map(|x| f32::from_bits(x.to_bits().wrapping_add(127) << 23)))
    }

    #[inline(always)]
    fn sum4(registers: [Self; 4]) -> [f32; 4] {
        registers.map(|Portable([a, b, c, d])| (a + b) + (c + d))
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
