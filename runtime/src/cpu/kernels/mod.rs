//! The arithmetic of the forward pass, compiled once per instruction set.
//!
//! Each kernel is one generic function over [`Simd`](super::simd::Simd). [`Kernels`] is the
//! dispatch table of one instruction set; it can only be obtained if the CPU has these
//! instructions, so its methods are safe.
//!
//! **Every output is reduced in one fixed order**, whatever the batch: a dot product is accumulated
//! per lane, then reduced over one tree, and the K blocks of a long dot product are added first to
//! last; attention walks KV blocks from the oldest, in partitions of fixed token counts. The number
//! of rows in a call, their order and the calling thread do not change any bit.

mod attention;
mod byte_tile;
mod glu;
mod interleave;
mod norm;
mod packing;
mod pairs;
mod pairs_table;
mod product;
mod q8;
mod q8_product;
mod q8_row;
mod q8_table;
mod quantized;
mod scratch;
mod softmax;
mod stored;
mod table;
mod tile;
mod unpack;

pub(crate) use attention::{Attention, partitions};
pub(crate) use interleave::{INTERLEAVED_ROWS, interleave};
pub(crate) use packing::Packing;
pub(crate) use pairs::pairs_of;
pub(crate) use pairs_table::PairKernels;
pub(crate) use product::Product;
pub(crate) use q8::Q8Block;
pub(crate) use q8_product::Q8Product;
pub(crate) use q8_table::Q8Kernels;
pub(crate) use scratch::AttentionScratch;
pub(crate) use softmax::Softmax;
pub(crate) use table::Kernels;

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod proven;
#[cfg(test)]
mod tests;
