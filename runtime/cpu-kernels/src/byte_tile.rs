//! A tile of weights unpacked to bytes: two registers of rows (its columns), a lane each; a word
//! holds four consecutive values of a row.

use std::mem::MaybeUninit;

use trail_platform::simd::{Bytes, MAX_LANES};

/// Values of a row in a tile: two blocks of the largest type.
pub(super) const TILE_VALUES: usize = 512;
/// Columns of the widest tile.
const MAX_COLS: usize = 2 * MAX_LANES;
/// Values of the smallest block, with one scale and at most one minimum.
const GROUP: usize = 32;
/// Words of a group.
pub(super) const GROUP_WORDS: usize = GROUP / 4;

/// How a type's scales apply.
pub(super) trait Scaling {
    /// A minimum per 32 values; without, all types subtract an offset from q.
    const MINS: bool;
    /// Values with one scale: 16 or 32.
    const SCALE_VALUES: usize;
    /// True if q can exceed 127.
    const WIDE: bool;
}

/// Declares types without values that implement [`Scaling`].
macro_rules! scaling {
    ($($(#[$doc:meta])* $name:ident: $mins:literal, $values:literal, $wide:literal;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;
        impl Scaling for $name {
            const MINS: bool = $mins;
            const SCALE_VALUES: usize = $values;
            const WIDE: bool = $wide;
        }
    )*};
}

scaling! {
    /// One scale per 32 values.
    Offset: false, 32, false;
    /// One scale per 32 values of 8 bits.
    WideOffset: false, 32, true;
    /// One scale per 16 values.
    HalfOffset: false, 16, false;
    /// Scale and minimum per 32 values.
    Minimum: true, 32, false;
}

/// Receiver of an unpacked block of one register of columns.
///
/// # Safety
///
/// The functions require the receiver to have room for the group, and `V`'s instructions.
pub(super) trait Sink<V: Bytes> {
    /// Takes word `word` (0..8) of group `group` of 32 values.
    unsafe fn put(&mut self, group: usize, word: usize, q: V::Words);
    /// Takes scale `index`.
    unsafe fn put_scale(&mut self, index: usize, scale: V);
    /// Takes minimum `index`.
    unsafe fn put_min(&mut self, index: usize, min: V);
}

/// A tile of unpacked weights. The number of its columns is that of two registers.
#[repr(align(64))]
pub(super) struct ByteTile {
    /// Four values of a column each `[TILE_VALUES / 4][columns]`.
    q: [MaybeUninit<u32>; TILE_VALUES / 4 * MAX_COLS],
    /// `[TILE_VALUES / SCALE_VALUES][columns]`
    scales: [MaybeUninit<f32>; TILE_VALUES / 16 * MAX_COLS],
    /// `[TILE_VALUES / 32][columns]`
    mins: [MaybeUninit<f32>; TILE_VALUES / GROUP * MAX_COLS],
}

/// Pointers into a [`ByteTile`], at one of its registers of columns.
#[derive(Clone, Copy)]
pub(super) struct Unpacked {
    pub(super) q: *mut u32,
    pub(super) scales: *mut f32,
    pub(super) mins: *mut f32,
}

impl ByteTile {
    pub(super) fn new() -> Self {
        ByteTile {
            q: [MaybeUninit::uninit(); TILE_VALUES / 4 * MAX_COLS],
            scales: [MaybeUninit::uninit(); TILE_VALUES / 16 * MAX_COLS],
            mins: [MaybeUninit::uninit(); TILE_VALUES / GROUP * MAX_COLS],
        }
    }

    /// The tile, from its first column.
    pub(super) fn unpacked(&mut self) -> Unpacked {
        let Self { q, scales, mins } = self;
        Unpacked {
            q: q.as_mut_ptr().cast(),
            scales: scales.as_mut_ptr().cast(),
            mins: mins.as_mut_ptr().cast(),
        }
    }
}

impl Unpacked {
    /// The second register of columns.
    pub(super) fn second<V: Bytes>(self) -> Self {
        let Unpacked { q, scales, mins } = self;
        Unpacked {
            q: q.wrapping_add(V::LANES),
            scales: scales.wrapping_add(V::LANES),
            mins: mins.wrapping_add(V::LANES),
        }
    }

    /// The values from `values` on, a multiple of 32.
    pub(super) fn skip<V: Bytes, S: Scaling>(self, values: usize) -> Self {
        let Unpacked { q, scales, mins } = self;
        Unpacked {
            q: q.wrapping_add(values / 4 * 2 * V::LANES),
            scales: scales.wrapping_add(values / S::SCALE_VALUES * 2 * V::LANES),
            mins: mins.wrapping_add(values / GROUP * 2 * V::LANES),
        }
    }
}

impl<V: Bytes> Sink<V> for Unpacked {
    #[inline(always)]
    unsafe fn put(&mut self, group: usize, word: usize, q: V::Words) {
        // SAFETY: the caller guarantees the group.
        unsafe { V::store_words(q, self.q.add((group * GROUP_WORDS + word) * 2 * V::LANES)) }
    }

    #[inline(always)]
    unsafe fn put_scale(&mut self, index: usize, scale: V) {
        // SAFETY: the caller guarantees the scale.
        unsafe { scale.store(self.scales.add(index * 2 * V::LANES)) }
    }

    #[inline(always)]
    unsafe fn put_min(&mut self, index: usize, min: V) {
        // SAFETY: the caller guarantees the minimum.
        unsafe { min.store(self.mins.add(index * 2 * V::LANES)) }
    }
}
