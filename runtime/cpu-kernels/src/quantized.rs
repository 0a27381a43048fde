//! GGUF's block types: unpacking in registers.
//!
//! A value is `scale * q + minimum` with a small integer q. The scale is a half-precision number
//! (11 significant bits), for the K types times an integer, of MXFP4 a power of two. `scale * q`
//! has at most 24 significant bits (Q8_0: 11 + 8; Q4_K and Q5_K: 17 + 5; Q6_K: 18 + 6), so that it
//! is exact in f32 and a minimum adds the only rounding. Each instruction set therefore computes
//! the f32 of [`Dtype::widen`] (a zero may have the other sign), fused or not, and a product is
//! that of the widened weights: its error is that of the f32 sum alone.

use std::marker::PhantomData;

use crate::Dtype;
use crate::dtype::{E2M1_TWICE, e8m0_half};
use trail_platform::simd::{MAX_LANES, Simd};

use super::stored::{Cached, Stored, TILE_COLS, Widen};

/// Values of a group: the unit in which all types are unpacked.
const GROUP: usize = 32;

/// A block type: groups of 32 values; each group fills a whole number of registers.
///
/// # Safety
///
/// The functions require a readable block and `V`'s instructions.
pub(super) trait Block {
    /// Type of the stored bytes.
    const DTYPE: Dtype;
    /// Scales of a block, decoded once for all its groups.
    type Scales<V: Simd>: Copy;
    /// Decodes the scales.
    unsafe fn scales<V: Simd>(block: *const u8) -> Self::Scales<V>;
    /// Register of the values `at..at + V::LANES` of group `group`.
    unsafe fn values<V: Simd>(
        block: *const u8,
        scales: &Self::Scales<V>,
        group: usize,
        at: usize,
    ) -> V;
}

/// [`Stored`] form of a [`Block`]: a step is a block.
pub(super) struct Blocks<T>(PhantomData<T>);

impl<V: Simd, T: Block> Stored<V> for Blocks<T> {
    const DTYPE: Dtype = T::DTYPE;

    #[inline(always)]
    fn step() -> usize {
        T::DTYPE.block_values()
    }

    #[inline(always)]
    unsafe fn add_step<const ROWS: usize>(
        sums: &mut [[V; TILE_COLS]; ROWS],
        x: *const f32,
        x_stride: usize,
        weights: [*const u8; TILE_COLS],
    ) {
        // SAFETY: the caller guarantees readable rows and `V`'s instructions.
        unsafe {
            let [a, b, c, d] = weights;
            let scales =
                [T::scales::<V>(a), T::scales::<V>(b), T::scales::<V>(c), T::scales::<V>(d)];
            for group in 0..T::DTYPE.block_values() / GROUP {
                let x = x.add(group * GROUP);
                for j in 0..TILE_COLS {
                    for register in 0..GROUP / V::LANES {
                        let at = register * V::LANES;
                        let w = T::values::<V>(weights[j], &scales[j], group, at);
                        for (m, sums) in sums.iter_mut().enumerate() {
                            let x = V::load(x.add(m * x_stride + at));
                            sums[j] = x.mul_add(w, sums[j]);
                        }
                    }
                }
            }
        }
    }
}

impl<V: Simd, T: Block> Cached<V> for Blocks<T> {
    #[inline(always)]
    fn offset(at: usize) -> usize {
        at / T::DTYPE.block_values() * T::DTYPE.block_bytes()
    }

    #[inline(always)]
    unsafe fn load(vector: *const u8, at: usize) -> V {
        // SAFETY: the caller guarantees a readable vector and `V`'s instructions.
        unsafe {
            let block = vector.add(<Self as Cached<V>>::offset(at));
            let (group, at) = (at % T::DTYPE.block_values() / GROUP, at % GROUP);
            T::values(block, &T::scales(block), group, at)
        }
    }
}

impl<V: Simd, T: Block> Widen<V> for Blocks<T> {
    #[inline(always)]
    unsafe fn widen_step(row: *const u8, wide: *mut f32) {
        // SAFETY: the caller guarantees the pointers and `V`'s instructions.
        unsafe {
            let scales = T::scales::<V>(row);
            for group in 0..T::DTYPE.block_values() / GROUP {
                for at in (0..GROUP).step_by(V::LANES) {
                    let values = T::values::<V>(row, &scales, group, at);
                    values.store(wide.add(group * GROUP + at));
                }
            }
        }
    }
}

/// Implements [`Block`], and names its [`Stored`] form.
macro_rules! block {
    (
        $(#[$doc:meta])* $stored:ident, $name:ident, $dtype:expr, $scales:ident,
        |$block:ident, $V:ident| $decode:expr,
        |$used:ident, $group:ident, $at:ident| $values:expr
    ) => {
        $(#[$doc])*
        pub(super) type $stored = Blocks<$name>;
        pub(super) struct $name;

        impl Block for $name {
            const DTYPE: Dtype = $dtype;
            type Scales<$V: Simd> = $scales<$V>;

            #[inline(always)]
            unsafe fn scales<$V: Simd>($block: *const u8) -> $scales<$V> {
                // SAFETY: the caller guarantees a readable block and `V`'s instructions.
                unsafe { $decode }
            }

            #[inline(always)]
            unsafe fn values<$V: Simd>(
                $block: *const u8,
                $used: &$scales<$V>,
                $group: usize,
                $at: usize,
            ) -> $V {
                // SAFETY: the caller guarantees a readable block and `V`'s instructions.
                unsafe { $values }
            }
        }
    };
}

/// Scale, and minimum or offset, of the types with one scale a block.
#[derive(Clone, Copy)]
pub(super) struct Linear<V> {
    scale: V,
    /// Added to the scaled integer.
    min: V,
}

impl<V: Simd> Linear<V> {
    /// Scale at `p`; integers have `offset` added.
    ///
    /// # Safety
    ///
    /// `p` must be readable for 2 bytes, and the CPU have `V`'s instructions.
    #[inline(always)]
    unsafe fn with_offset(p: *const u8, offset: f32) -> Self {
        // SAFETY: the caller guarantees a readable `p` and `V`'s instructions.
        unsafe {
            let scale = V::splat_f16(p);
            Linear { scale, min: scale.mul(V::splat(offset)) }
        }
    }

    /// Scale at `p`, minimum after it.
    ///
    /// # Safety
    ///
    /// `p` must be readable for 4 bytes, and the CPU have `V`'s instructions.
    #[inline(always)]
    unsafe fn with_min(p: *const u8) -> Self {
        // SAFETY: the caller guarantees a readable `p` and `V`'s instructions.
        unsafe { Linear { scale: V::splat_f16(p), min: V::splat_f16(p.add(2)) } }
    }

    /// Values of the nibbles of `bytes`, the low or the high ones.
    #[inline(always)]
    fn nibbles(self, bytes: V::Words, at: usize) -> V {
        let q = if at < 16 { bytes } else { V::shift_right(bytes, 4) };
        V::nibble_values(V::nibble_table(self.scale, self.min), q)
    }

    #[inline(always)]
    fn values(self, q: V::Words) -> V {
        V::to_f32(q).mul_add(self.scale, self.min)
    }
}

block!(
    /// 34 bytes: scale, 32 signed bytes.
    StoredQ8_0, Q8_0, Dtype::Q8_0, Linear,
    |block, V| Linear::with_offset(block, 0.0),
    |scales, _group, at| V::to_f32(V::load_i8(block.add(2 + at))).mul(scales.scale)
);
block!(
    /// 18 bytes: scale, 16 bytes of nibbles.
    StoredQ4_0, Q4_0, Dtype::Q4_0, Linear,
    |block, V| Linear::with_offset(block, -8.0),
    |scales, _group, at| scales.nibbles(V::load_u8(block.add(2 + at % 16)), at)
);
block!(
    /// 20 bytes: scale, minimum, 16 bytes of nibbles.
    StoredQ4_1, Q4_1, Dtype::Q4_1, Linear,
    |block, V| Linear::with_min(block),
    |scales, _group, at| scales.nibbles(V::load_u8(block.add(4 + at % 16)), at)
);
block!(
    /// 22 bytes: scale, 32 highest bits, 16 bytes of nibbles.
    StoredQ5_0, Q5_0, Dtype::Q5_0, Linear,
    |block, V| Linear::with_offset(block, -16.0),
    |scales, _group, at| scales.values(five_bits::<V>(block.add(2), at))
);
block!(
    /// 24 bytes: scale, minimum, 32 highest bits, 16 bytes of nibbles.
    StoredQ5_1, Q5_1, Dtype::Q5_1, Linear,
    |block, V| Linear::with_min(block),
    |scales, _group, at| scales.values(five_bits::<V>(block.add(4), at))
);
block!(
    /// 144 bytes: scale of scales and of minima, their 6-bit integers, 128 bytes of nibbles.
    StoredQ4K, Q4K, Dtype::Q4K, GroupScales,
    |block, V| GroupScales::of_pairs(block),
    |scales, group, at| {
        let q = V::load_u8(block.add(16 + group / 2 * GROUP + at));
        let table = V::nibble_table(V::splat(scales.scale[group]), V::splat(scales.min[group]));
        V::nibble_values(table, V::shift_right(q, 4 * (group as u32 % 2)))
    }
);
block!(
    /// 176 bytes: as Q4_K, with 32 bytes of highest bits before the nibbles.
    StoredQ5K, Q5K, Dtype::Q5K, GroupScales,
    |block, V| GroupScales::of_pairs(block),
    |scales, group, at| {
        let q = V::load_u8(block.add(48 + group / 2 * GROUP + at));
        let q = V::and(V::shift_right(q, 4 * (group as u32 % 2)), 15);
        let highest = V::shift_right(V::load_u8(block.add(16 + at)), group as u32);
        let q = V::or(q, V::shift_left(V::and(highest, 1), 4));
        V::to_f32(q).mul_add(V::splat(scales.scale[group]), V::splat(scales.min[group]))
    }
);
block!(
    /// 210 bytes: 128 bytes of nibbles, 64 of the two highest bits, 16 signed scales, their scale.
    StoredQ6K, Q6K, Dtype::Q6K, GroupScales,
    |block, V| GroupScales::of_signed(block.add(192)),
    |scales, group, at| {
        let (half, run) = (group / 4, group % 4);
        let q = V::load_u8(block.add(half * 64 + run % 2 * GROUP + at));
        let q = V::and(V::shift_right(q, 4 * (run as u32 / 2)), 15);
        let highest = V::load_u8(block.add(128 + half * GROUP + at));
        let highest = V::shift_right(highest, 2 * run as u32);
        let q = V::or(q, V::shift_left(V::and(highest, 3), 4));
        let scale = 2 * group + at / 16;
        V::to_f32(q).mul_add(V::splat(scales.scale[scale]), V::splat(scales.min[scale]))
    }
);

block!(
    /// 17 bytes: exponent, 16 bytes of nibbles.
    StoredMxFp4, MxFp4, Dtype::MxFp4, Linear,
    |block, V| {
        let scale = V::splat(e8m0_half(*block));
        Linear { scale, min: scale.mul(V::splat(-E2M1_OFFSET)) }
    },
    |scales, _group, at| {
        let codes = nibbles::<V>(block.add(1), at);
        scales.values(V::and(V::lookup(codes, E2M1_BYTES), 255))
    }
);

/// Offset of twice a value of E2M1, which is then no less than 0.
const E2M1_OFFSET: f32 = 12.0;
/// Twice the values of E2M1, with the offset.
pub(super) const E2M1_BYTES: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = (E2M1_TWICE[code] + E2M1_OFFSET as i8) as u8;
        code += 1;
    }
    bytes
};

/// Values `at..at + V::LANES` of 32 nibbles: value j is the low nibble of byte j, value j + 16 the
/// high one.
///
/// # Safety
///
/// `p` must be readable for 16 bytes, and the CPU have `V`'s instructions.
#[inline(always)]
unsafe fn nibbles<V: Simd>(p: *const u8, at: usize) -> V::Words {
    // SAFETY: the caller guarantees a readable `p` and `V`'s instructions.
    let bytes = unsafe { V::load_u8(p.add(at % 16)) };
    if at < 16 { V::and(bytes, 15) } else { V::shift_right(bytes, 4) }
}

/// The same of 5-bit values: the highest bits are 4 bytes before the nibbles.
///
/// # Safety
///
/// `p` must be readable for 20 bytes, and the CPU have `V`'s instructions.
#[inline(always)]
unsafe fn five_bits<V: Simd>(p: *const u8, at: usize) -> V::Words {
    // SAFETY: the caller guarantees a readable `p` and `V`'s instructions.
    let (highest, low) =
        unsafe { (p.cast::<[u8; 4]>().read_unaligned(), nibbles::<V>(p.add(4), at)) };
    V::or_where(low, u32::from_le_bytes(highest) >> at, 16)
}

/// Scales of a K type's groups: `scale * q + min`.
#[derive(Clone, Copy)]
pub(super) struct GroupScales<V> {
    scale: [f32; MAX_LANES],
    min: [f32; MAX_LANES],
    _register: PhantomData<V>,
}

impl<V: Simd> GroupScales<V> {
    /// Decodes `d`, `d_min` and the eight pairs of 6 bits, packed in 12 bytes, of Q4_K and Q5_K.
    ///
    /// # Safety
    ///
    /// `block` must be readable for 16 bytes, and the CPU have `V`'s instructions.
    #[inline(always)]
    unsafe fn of_pairs(block: *const u8) -> Self {
        const SIX: u32 = 0x3f3f_3f3f;
        const LOW: u32 = 0x0f0f_0f0f;
        const HIGH: u32 = 0x3030_3030;
        let mut out = GroupScales { scale: [0.0; 16], min: [0.0; 16], _register: PhantomData };
        // SAFETY: the caller guarantees a readable block and `V`'s instructions; the arrays of 16
        // bytes and of 16 floats hold a register.
        unsafe {
            let [a, b, c] = block.add(4).cast::<[[u8; 4]; 3]>().read().map(u32::from_le_bytes);
            let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            let scales = pair(a & SIX, c & LOW | a >> 2 & HIGH);
            let mins = pair(b & SIX, c >> 4 & LOW | b >> 2 & HIGH);
            let (scales, mins) = (u128::from(scales).to_le_bytes(), u128::from(mins).to_le_bytes());
            let d = V::splat_f16(block);
            let d_min = V::splat(0.0).sub(V::splat_f16(block.add(2)));
            V::to_f32(V::load_u8(scales.as_ptr())).mul(d).store(out.scale.as_mut_ptr());
            V::to_f32(V::load_u8(mins.as_ptr())).mul(d_min).store(out.min.as_mut_ptr());
        }
        out
    }

    /// Decodes the 16 signed scales of Q6_K and `d`; the offset of 32 is a minimum.
    ///
    /// # Safety
    ///
    /// `p` must be readable for 18 bytes, and the CPU have `V`'s instructions.
    #[inline(always)]
    unsafe fn of_signed(p: *const u8) -> Self {
        let mut out = GroupScales { scale: [0.0; 16], min: [0.0; 16], _register: PhantomData };
        // SAFETY: the caller guarantees a readable `p` and `V`'s instructions; the arrays hold
        // whole registers.
        unsafe {
            let d = V::splat_f16(p.add(16));
            for at in (0..16).step_by(V::LANES) {
                let scale = V::to_f32(V::load_i8(p.add(at))).mul(d);
                scale.store(out.scale.as_mut_ptr().add(at));
                scale.mul(V::splat(-32.0)).store(out.min.as_mut_ptr().add(at));
            }
        }
        out
    }
}
