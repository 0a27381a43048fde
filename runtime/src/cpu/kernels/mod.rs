//! The arithmetic of the forward pass, compiled once per instruction set.
//!
//! Each kernel is one generic function over [`Simd`](super::simd::Simd). [`Kernels`] is the table of
//! one instruction set's versions; it can only be had for instructions the CPU has, so its methods
//! are safe.
//!
//! **Every output is reduced in one order**, whatever the batch: a dot product runs along the
//! lanes in steps, then over one tree, and blocks of a long dot product are added first to last;
//! attention walks KV blocks from the oldest. How many rows share a call, which rows, and which
//! thread makes it, alter no bit.

mod attention;
mod norm;
mod packing;
mod product;
mod scratch;
mod stored;
mod swiglu;
mod table;
mod tile;

pub(crate) use attention::Attention;
pub(crate) use packing::Packing;
pub(crate) use product::Product;
pub(crate) use scratch::AttentionScratch;
pub(crate) use table::Kernels;

#[cfg(test)]
mod tests;
