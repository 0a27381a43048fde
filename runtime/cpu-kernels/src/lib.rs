//! The arithmetic of the CPU's forward pass, compiled once per instruction set, and the types of
//! stored weights that it reads.
//!
//! Each kernel is one generic function over [`Simd`](trail_platform::simd::Simd). [`Kernels`] is the
//! dispatch table of one instruction set; it can only be obtained if the CPU has these
//! instructions, so its methods are safe.
//!
//! **Every output is reduced in one fixed order**, whatever the batch: a dot product is accumulated
//! per lane, then reduced over one tree, and the K blocks of a long dot product are added first to
//! last; attention walks KV blocks from the oldest, in partitions of fixed token counts. The number
//! of rows in a call, their order and the calling thread do not change any bit.
//!
//! Apart from the runtime, as its compilation takes longer than the runtime's.

mod activation;
mod ahead;
mod aligned;
mod attention;
mod byte_tile;
mod delta_rule;
mod dtype;
mod expand;
mod glu;
mod interleave;
mod norm;
mod packing;
mod pairs;
mod pairs_table;
mod product;
mod q8;
mod q8_product;
mod q8_rows;
mod q8_table;
mod quantized;
mod random;
mod scratch;
mod shared;
mod softmax;
mod stored;
mod table;
mod tile;
mod unpack;

pub use activation::Activation;
pub use aligned::Aligned;
pub use attention::{Attention, KV_DTYPES, partitions};
pub use delta_rule::DeltaRule;
pub use dtype::Dtype;
pub use expand::Expand;
pub use glu::{SWIGLU_ALPHA, SWIGLU_LIMIT};
pub use interleave::{INTERLEAVED_ROWS, interleave};
pub use packing::Packing;
pub use pairs::pairs_of;
pub use pairs_table::PairKernels;
pub use product::Product;
pub use q8::{Q8_VALUES, Q8Block};
pub use q8_product::Q8Product;
pub use q8_table::Q8Kernels;
pub use random::{DEVIATION, fill_random};
pub use scratch::{AttentionScratch, BLOCK_TOKENS};
pub use shared::SharedMut;
pub use softmax::Softmax;
pub use table::Kernels;
