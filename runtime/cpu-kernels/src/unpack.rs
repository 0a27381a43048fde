//! GGUF's block types for products of bytes: rows of weights unpacked to unsigned bytes.
//!
//! A value is `scale * (q + OFFSET)`, or `scale * q + minimum`, with an unsigned byte q.

use crate::Dtype;
use trail_platform::simd::{Bytes, MAX_LANES};

use super::Q8Product;
use super::ahead::Ahead;
use super::byte_tile::{
    GROUP_WORDS, HalfOffset, Minimum, Offset, Scaling, Sink, Unpacked, WideOffset,
};
use super::interleave::{HALF, INTERLEAVED_ROWS, WORD};
use super::quantized::E2M1_BYTES;

/// A layout of weights, by which the rows of a register are read.
///
/// # Safety
///
/// The functions that read require the rows' block to be readable, and `V`'s instructions.
pub(super) trait Layout {
    /// Addresses of the rows of a register.
    type Rows;
    /// True if the rows of two registers share cache lines.
    const SHARES_LINES: bool;

    /// The rows from `col` of `product`'s weights, whose type is `dtype`, from value `k` on. Beyond
    /// the last row, that one or others are read instead.
    fn rows<V: Bytes>(product: &Q8Product<'_>, dtype: Dtype, col: usize, k: usize) -> Self::Rows;
    /// 16 bytes of every row from byte `at`: register d holds bytes `4 d..4 d + 4`.
    unsafe fn words<V: Bytes>(rows: &Self::Rows, at: usize) -> [V::Words; 4];
    /// The half-precision value at byte `at`; 14 bytes of the row follow it.
    unsafe fn half<V: Bytes>(rows: &Self::Rows, at: usize) -> V;
    /// Byte `at`; 15 bytes of the row follow it.
    unsafe fn byte<V: Bytes>(rows: &Self::Rows, at: usize) -> V::Words;
    /// The same as `half` where 14 bytes of the row precede it.
    unsafe fn last_half<V: Bytes>(rows: &Self::Rows, at: usize) -> V;
}

/// The layout of files.
pub(super) struct RowMajor;

impl Layout for RowMajor {
    type Rows = [*const u8; MAX_LANES];
    const SHARES_LINES: bool = false;

    #[inline(always)]
    fn rows<V: Bytes>(product: &Q8Product<'_>, dtype: Dtype, col: usize, k: usize) -> Self::Rows {
        let row_bytes = dtype.bytes_of(product.k);
        std::array::from_fn(|lane| {
            let row = (col + lane.min(V::LANES - 1)).min(product.cols - 1);
            product.weights[row * row_bytes + dtype.bytes_of(k)..].as_ptr()
        })
    }

    #[inline(always)]
    unsafe fn words<V: Bytes>(rows: &Self::Rows, at: usize) -> [V::Words; 4] {
        // SAFETY: the caller guarantees the rows and the instructions.
        unsafe { V::load_columns(rows, at) }
    }

    #[inline(always)]
    unsafe fn half<V: Bytes>(rows: &Self::Rows, at: usize) -> V {
        // SAFETY: the caller guarantees the rows and the instructions.
        V::low_half(unsafe { V::load_columns(rows, at) }[0])
    }

    #[inline(always)]
    unsafe fn byte<V: Bytes>(rows: &Self::Rows, at: usize) -> V::Words {
        // SAFETY: the caller guarantees the rows and the instructions.
        V::and(unsafe { V::load_columns(rows, at) }[0], 255)
    }

    #[inline(always)]
    unsafe fn last_half<V: Bytes>(rows: &Self::Rows, at: usize) -> V {
        // SAFETY: the caller guarantees the rows and the instructions.
        let words = unsafe { V::load_columns(rows, at - 14) };
        V::low_half(V::shift_right(words[3], 16))
    }
}

/// The layout of [`interleave`](super::interleave()).
pub(super) struct Interleaved;

/// Addresses of the first lane's row in an interleaved group.
pub(super) struct GroupRows {
    /// In each word.
    words: *const u8,
    /// In each half.
    halves: *const u8,
    /// In each byte.
    bytes: *const u8,
}

impl Layout for Interleaved {
    type Rows = GroupRows;
    const SHARES_LINES: bool = true;

    /// `col` is a multiple of the lanes, and the number of columns one of [`INTERLEAVED_ROWS`].
    #[inline(always)]
    fn rows<V: Bytes>(product: &Q8Product<'_>, dtype: Dtype, col: usize, k: usize) -> Self::Rows {
        let col = col.min(product.cols - V::LANES);
        let (group, row) = (col / INTERLEAVED_ROWS, col % INTERLEAVED_ROWS);
        let bytes = group * dtype.bytes_of(product.k) + dtype.bytes_of(k);
        let group = product.weights[INTERLEAVED_ROWS * bytes..].as_ptr();
        let field = |width: usize| group.wrapping_add(width * row);
        GroupRows { words: field(WORD), halves: field(HALF), bytes: field(1) }
    }

    #[inline(always)]
    unsafe fn words<V: Bytes>(rows: &Self::Rows, at: usize) -> [V::Words; 4] {
        let first = rows.words.wrapping_add(INTERLEAVED_ROWS * at);
        // A macro, as a closure need not be inlined.
        macro_rules! word {
            ($i:literal) => {
                V::load_words(first.wrapping_add(INTERLEAVED_ROWS * WORD * $i).cast())
            };
        }
        // SAFETY: the caller guarantees the rows and the instructions.
        unsafe { [word!(0), word!(1), word!(2), word!(3)] }
    }

    #[inline(always)]
    unsafe fn half<V: Bytes>(rows: &Self::Rows, at: usize) -> V {
        // SAFETY: the caller guarantees the rows and the instructions.
        unsafe { V::load_f16(rows.halves.wrapping_add(INTERLEAVED_ROWS * at)) }
    }

    #[inline(always)]
    unsafe fn byte<V: Bytes>(rows: &Self::Rows, at: usize) -> V::Words {
        // SAFETY: the caller guarantees the rows and the instructions.
        unsafe { V::load_u8(rows.bytes.wrapping_add(INTERLEAVED_ROWS * at)) }
    }

    #[inline(always)]
    unsafe fn last_half<V: Bytes>(rows: &Self::Rows, at: usize) -> V {
        // SAFETY: as above.
        unsafe { Self::half(rows, at) }
    }
}

/// A block type whose rows are unpacked to bytes. A new type is an implementation of this trait and
/// an arm of [`Q8Product::run`](super::Q8Product).
pub(super) trait Unpack {
    /// Type of the stored bytes.
    const DTYPE: Dtype;
    /// How the scales apply.
    type Scaling: Scaling;
    /// Added to q; 0 for types with minima.
    const OFFSET: i16;

    /// Unpacks a block at byte `at` of `V::LANES` rows, which lie by `L`.
    ///
    /// # Safety
    ///
    /// The block must be readable in each of `rows`, `to` have room for it, and the CPU have `V`'s
    /// instructions.
    unsafe fn unpack<V: Bytes, L: Layout, T: Sink<V>>(rows: &L::Rows, at: usize, to: &mut T);
}

/// Unpacks `values` values of `V::LANES` rows, from a multiple of a block.
///
/// # Safety
///
/// Each row must be readable for `values` values, at most
/// [`TILE_VALUES`](super::byte_tile::TILE_VALUES), `to` point into a tile, and the CPU have `V`'s
/// instructions.
#[inline(always)]
pub(super) unsafe fn unpack_rows<V: Bytes, L: Layout, U: Unpack>(
    rows: &L::Rows,
    values: usize,
    ahead: &mut Ahead,
    to: Unpacked,
) {
    let (block_values, block_bytes) = (U::DTYPE.block_values(), U::DTYPE.block_bytes());
    let blocks = values / block_values;
    for block in 0..blocks {
        ahead.prefetch::<V>();
        let mut to = to.skip::<V, U::Scaling>(block * block_values);
        // SAFETY: the block is within `values` values of `V::LANES` rows.
        unsafe { U::unpack::<V, L, _>(rows, block * block_bytes, &mut to) };
    }
}

/// The four lowest bits of each byte.
const NIBBLES: u32 = 0x0f0f_0f0f;
/// The lowest bit of each byte.
const BITS: u32 = 0x0101_0101;

/// Repeats `$body` with each value of the constant `$i`: positions of words must be constants in
/// the machine code, as sums of products in an array with a variable index are kept in memory.
macro_rules! unroll {
    ($i:ident in [$($value:literal),*] $body:block) => {
        $({
            const $i: usize = $value;
            $body
        })*
    };
}

/// Implements [`Unpack`].
macro_rules! unpack {
    (
        $name:ident, $dtype:expr, $scaling:ty, $offset:literal,
        |$V:ident, $L:ident, $rows:ident, $at:ident, $to:ident| $body:expr
    ) => {
        pub(super) struct $name;

        impl Unpack for $name {
            const DTYPE: Dtype = $dtype;
            type Scaling = $scaling;
            const OFFSET: i16 = $offset;

            #[inline(always)]
            unsafe fn unpack<$V: Bytes, $L: Layout, T: Sink<$V>>(
                $rows: &$L::Rows,
                $at: usize,
                $to: &mut T,
            ) {
                // SAFETY: the caller guarantees a readable block, room and `V`'s instructions.
                unsafe { $body }
            }
        }
    };
}

unpack!(BytesQ8_0, Dtype::Q8_0, WideOffset, -128, |V, L, rows, at, to| {
    to.put_scale(0, L::half::<V>(rows, at));
    for half in 0..2 {
        let words = L::words::<V>(rows, at + 2 + 16 * half);
        for (word, q) in words.into_iter().enumerate() {
            to.put(0, 4 * half + word, V::xor(q, 0x8080_8080));
        }
    }
});
unpack!(BytesQ4_0, Dtype::Q4_0, Offset, -8, |V, L, rows, at, to| {
    to.put_scale(0, L::half::<V>(rows, at));
    put_nibbles::<V, T>(L::words::<V>(rows, at + 2), 0, 0, 4, to);
});
unpack!(BytesQ4_1, Dtype::Q4_1, Minimum, 0, |V, L, rows, at, to| {
    let scales = L::words::<V>(rows, at)[0];
    to.put_scale(0, V::low_half(scales));
    to.put_min(0, V::low_half(V::shift_right(scales, 16)));
    put_nibbles::<V, T>(L::words::<V>(rows, at + 4), 0, 0, 4, to);
});
unpack!(BytesQ5_0, Dtype::Q5_0, Offset, -16, |V, L, rows, at, to| {
    to.put_scale(0, L::half::<V>(rows, at));
    put_five_bits::<V, L, T>(rows, at + 2, to);
});
unpack!(BytesQ5_1, Dtype::Q5_1, Minimum, 0, |V, L, rows, at, to| {
    let scales = L::words::<V>(rows, at)[0];
    to.put_scale(0, V::low_half(scales));
    to.put_min(0, V::low_half(V::shift_right(scales, 16)));
    put_five_bits::<V, L, T>(rows, at + 4, to);
});
unpack!(BytesQ4K, Dtype::Q4K, Minimum, 0, |V, L, rows, at, to| {
    put_pairs::<V, L, T>(rows, at, to);
    unroll!(PART in [0, 1, 2, 3, 4, 5, 6, 7] {
        // 32 bytes hold the low nibbles of one group and the high ones of the next.
        let words = L::words::<V>(rows, at + 16 + 16 * PART);
        put_nibbles::<V, T>(words, PART / 2 * 2, PART % 2 * 4, GROUP_WORDS, to);
    });
});
unpack!(BytesQ5K, Dtype::Q5K, Minimum, 0, |V, L, rows, at, to| {
    put_pairs::<V, L, T>(rows, at, to);
    unroll!(H in [0, 1] {
        let highest = L::words::<V>(rows, at + 16 + 16 * H);
        unroll!(PAIR in [0, 1, 2, 3] {
            let words = L::words::<V>(rows, at + 48 + 32 * PAIR + 16 * H);
            unroll!(W in [0, 1, 2, 3] {
                let q = words[W];
                for (group, q) in [(2 * PAIR, q), (2 * PAIR + 1, V::shift_right(q, 4))] {
                    let bit = V::and(V::shift_right(highest[W], group as u32), BITS);
                    let q = V::or(V::and(q, NIBBLES), V::shift_left(bit, 4));
                    to.put(group, 4 * H + W, q);
                }
            });
        });
    });
});
unpack!(BytesQ6K, Dtype::Q6K, HalfOffset, -32, |V, L, rows, at, to| {
    let d = L::last_half::<V>(rows, at + 208);
    let integers = L::words::<V>(rows, at + 192);
    unroll!(W in [0, 1, 2, 3] {
        unroll!(BYTE in [0, 1, 2, 3] {
            let scale = V::to_f32(V::signed_byte(integers[W], BYTE as u32)).mul(d);
            to.put_scale(4 * W + BYTE, scale);
        });
    });
    // 128 values: 64 bytes of nibbles, whose halves are the low bits of runs 0 and 2, 1 and 3, and
    // 32 bytes of the two highest bits of all four runs.
    unroll!(PART in [0, 1, 2, 3] {
        let (half, part) = (PART / 2, PART % 2);
        let highest = L::words::<V>(rows, at + 128 + 32 * half + 16 * part);
        unroll!(LOW in [0, 1] {
            let words = L::words::<V>(rows, at + 64 * half + 32 * LOW + 16 * part);
            unroll!(W in [0, 1, 2, 3] {
                let q = words[W];
                for (run, q) in [(LOW, q), (LOW + 2, V::shift_right(q, 4))] {
                    let bits = V::and(V::shift_right(highest[W], 2 * run as u32), 3 * BITS);
                    let q = V::or(V::and(q, NIBBLES), V::shift_left(bits, 4));
                    to.put(4 * half + run, 4 * part + W, q);
                }
            });
        });
    });
});

unpack!(BytesMxFp4, Dtype::MxFp4, Offset, -12, |V, L, rows, at, to| {
    // The power of two by the sum that `pow2_of_biased` takes; half of it, as q is twice the value.
    let exponent = V::to_f32(L::byte::<V>(rows, at)).add(V::splat(12_582_912.0 - 127.0));
    to.put_scale(0, exponent.pow2_of_biased().mul(V::splat(0.5)));
    for (word, q) in L::words::<V>(rows, at + 1).into_iter().enumerate() {
        to.put(0, word, V::lookup(V::and(q, NIBBLES), E2M1_BYTES));
        let q = V::and(V::shift_right(q, 4), NIBBLES);
        to.put(0, word + 4, V::lookup(q, E2M1_BYTES));
    }
});

/// Stores the nibbles of `words` from word `first` of group `group`, the high ones `distance` words
/// after the low ones.
///
/// # Safety
///
/// The tile must have the words, and the CPU `V`'s instructions.
#[inline(always)]
unsafe fn put_nibbles<V: Bytes, T: Sink<V>>(
    words: [V::Words; 4],
    group: usize,
    first: usize,
    distance: usize,
    to: &mut T,
) {
    unroll!(W in [0, 1, 2, 3] {
        let (q, high) = (words[W], first + W + distance);
        // SAFETY: the caller guarantees the words.
        unsafe {
            to.put(group, first + W, V::and(q, NIBBLES));
            let q = V::and(V::shift_right(q, 4), NIBBLES);
            to.put(group + high / GROUP_WORDS, high % GROUP_WORDS, q);
        }
    });
}

/// Stores a block of 32 values of 5 bits: the highest bits are 4 bytes at `at`, the nibbles follow.
///
/// # Safety
///
/// As [`Unpack::unpack`], for 20 bytes from `at`.
#[inline(always)]
unsafe fn put_five_bits<V: Bytes, L: Layout, T: Sink<V>>(rows: &L::Rows, at: usize, to: &mut T) {
    // SAFETY: the caller guarantees 20 bytes, room and `V`'s instructions.
    unsafe {
        let highest = L::words::<V>(rows, at)[0];
        let words = L::words::<V>(rows, at + 4);
        unroll!(W in [0, 1, 2, 3] {
            for (word, q) in [(W, words[W]), (W + 4, V::shift_right(words[W], 4))] {
                let bits = V::spread_bits(V::shift_right(highest, 4 * word as u32));
                to.put(0, word, V::or(V::and(q, NIBBLES), bits));
            }
        });
    }
}

/// Stores the scales and minima of the eight groups of Q4_K and Q5_K: pairs of 6 bits in 12 bytes,
/// after the scales `d` and `d_min` of both.
///
/// # Safety
///
/// As [`Unpack::unpack`].
#[inline(always)]
unsafe fn put_pairs<V: Bytes, L: Layout, T: Sink<V>>(rows: &L::Rows, at: usize, to: &mut T) {
    // SAFETY: the caller guarantees a readable block, room and `V`'s instructions.
    unsafe {
        let [scales, a, b, c] = L::words::<V>(rows, at);
        let d = V::low_half(scales);
        let minus_d_min = V::splat(0.0).sub(V::low_half(V::shift_right(scales, 16)));
        for i in 0..4 {
            let bits = 8 * i as u32;
            let low = (field::<V>(a, bits, 63), field::<V>(b, bits, 63));
            let scale_top = V::shift_left(field::<V>(a, bits + 6, 3), 4);
            let min_top = V::shift_left(field::<V>(b, bits + 6, 3), 4);
            let high = (
                V::or(field::<V>(c, bits, 15), scale_top),
                V::or(field::<V>(c, bits + 4, 15), min_top),
            );
            for (group, (scale, min)) in [(i, low), (i + 4, high)] {
                to.put_scale(group, V::to_f32(scale).mul(d));
                to.put_min(group, V::to_f32(min).mul(minus_d_min));
            }
        }
    }
}

/// `mask` of the bits of each lane from bit `shift` on. No closure, as it need not be inlined.
#[inline(always)]
fn field<V: Bytes>(words: V::Words, shift: u32, mask: u32) -> V::Words {
    V::and(V::shift_right(words, shift), mask)
}
