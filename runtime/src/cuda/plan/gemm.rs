//! Geometry of the matrix products: which kernel, how many blocks, how the work is shared.
//!
//! A product of up to 64 rows streams its weights once (`skinny_*`), one of more rows goes through
//! shared memory (`tiled_*`). Both cut the output into tiles of 128 features, and sum each in
//! pieces of the depth (order.rs). Few rows: a block for each piece of each tile. Many: the same
//! where tiles are few, else a block has all pieces of a tile.

use super::order::Order;
use super::shuffle::FEATURES;
use super::{Chip, LaunchPlan, Shape};
use trail_ptx::Target;

/// The fused epilogue of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Row scale, RoPE, append to the paged pool.
    Qkv,
    /// Residual stream, next operand, sums of squares, tap.
    Residual,
    /// Row scale, silu(gate) * up.
    Swiglu,
    /// Row scale, logits in f32.
    Logits,
}

/// A product: `rows` x `width` activations times `features` x `width` weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The fused epilogue.
    pub epilogue: Epilogue,
    /// Rows of activations, at least 1.
    pub rows: usize,
    /// Output features (of [`Epilogue::Swiglu`]: gate and up together).
    pub features: usize,
    /// Width of an activation row, a multiple of 8.
    pub width: usize,
}

/// A planned product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmPlan {
    /// The launch.
    pub launch: LaunchPlan,
    /// The product that was planned.
    pub product: Product,
    /// Output features, padded.
    pub features: usize,
    /// Width of the weights, padded.
    pub width: usize,
    /// Order of summing, the same for every plan of such features and width.
    pub order: Order,
    /// Token tiles walked together.
    pub tile_swizzle: usize,
    /// Floats of workspace for the sums of pieces; 0 where there is one.
    pub partial_floats: usize,
    /// Counters of tiles whose pieces have a block each, zero before the first launch; 0: a block
    /// has all pieces of a tile.
    pub tile_counters: usize,
}

/// A compiled instance, by the constants it was compiled with.
#[derive(Clone, Copy)]
pub(super) struct Instance {
    /// Names by [`Epilogue`].
    pub(super) kernels: [&'static str; 4],
    /// Tokens of a tile.
    pub(super) tokens: usize,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Depth of a unit along k.
    pub(super) depth: usize,
    /// Dynamic shared memory, bytes.
    pub(super) shared_bytes: u32,
    /// Blocks a multiprocessor that its registers allow.
    pub(super) blocks: u32,
    /// Share of the tensor cores' rate that its main loop can hope for, in percent.
    efficiency: u64,
}

/// Bytes of one token's row of sums: 128 features, padded by 4 against bank conflicts.
pub(super) const ROW_BYTES: usize = (FEATURES + 4) * 4;
/// Bytes of a block's weights in a step of 16 along k of the skinny kernels.
pub(super) const SKINNY_STEP_BYTES: usize = 4 * 1024;
/// Shared memory that each resident block costs beyond what it asks for: the driver's, and the
/// kernels' own static part.
pub(super) const BLOCK_OVERHEAD_BYTES: u32 = 1024 + 128;

/// `stages` of weights, of 16 along k, and of activations, of 64.
const fn skinny(kernels: [&'static str; 4], tokens: usize, stages: [usize; 2]) -> Instance {
    let depth = 64;
    let ring = stages[0] * SKINNY_STEP_BYTES + stages[1] * tokens * depth * 2;
    let sums = tokens * ROW_BYTES;
    // The sums lie over the used-up stages; beside them the row scales.
    let shared = if ring > sums { ring } else { sums } + tokens * 4;
    Instance {
        kernels,
        tokens,
        threads: 128,
        depth,
        shared_bytes: shared as u32,
        blocks: 3,
        efficiency: 50,
    }
}

const fn tiled(
    kernels: [&'static str; 4],
    tokens: usize,
    depth: usize,
    stages: usize,
    blocks: u32,
    efficiency: u64,
) -> Instance {
    let ring = stages * (FEATURES + tokens) * depth * 2;
    let sums = tokens * ROW_BYTES;
    // The sums lie over the used-up stages; beside them the row scales and the rows' sources.
    let shared = if ring > sums { ring } else { sums } + tokens * 8;
    Instance {
        kernels,
        tokens,
        threads: tokens as u32,
        depth,
        shared_bytes: shared as u32,
        blocks,
        efficiency,
    }
}

/// On sm_80, with rings as large as leave room for three blocks on a multiprocessor of an A100 (164
/// KiB): weights of 40, 40, 32 and 28 KiB a block are in flight. Little's law asks for about 18 KiB
/// a multiprocessor there, and 36 on an H200 (4.8 TB/s over 132, 1 us under load).
pub(super) const SKINNY: [Instance; 4] = [
    skinny(SKINNY_KERNELS[0], 8, [10, 4]),
    skinny(SKINNY_KERNELS[1], 16, [10, 4]),
    skinny(SKINNY_KERNELS[2], 32, [8, 3]),
    skinny(SKINNY_KERNELS[3], 64, [7, 3]),
];
/// The same on sm_90a, for two blocks on a multiprocessor of 228 KiB, as many products have one for
/// each: 80, 80, 80 and 56 KiB.
pub(super) const SKINNY_HOPPER: [Instance; 4] = [
    skinny(SKINNY_KERNELS[0], 8, [20, 6]),
    skinny(SKINNY_KERNELS[1], 16, [20, 6]),
    skinny(SKINNY_KERNELS[2], 32, [20, 6]),
    skinny(SKINNY_KERNELS[3], 64, [14, 5]),
];
const SKINNY_KERNELS: [[&str; 4]; 4] = [
    ["skinny_qkv_8", "skinny_residual_8", "skinny_swiglu_8", "skinny_logits_8"],
    ["skinny_qkv_16", "skinny_residual_16", "skinny_swiglu_16", "skinny_logits_16"],
    ["skinny_qkv_32", "skinny_residual_32", "skinny_swiglu_32", "skinny_logits_32"],
    ["skinny_qkv_64", "skinny_residual_64", "skinny_swiglu_64", "skinny_logits_64"],
];

/// The instances for few rows on `chip`.
pub(super) fn skinny_of(chip: &Chip) -> &'static [Instance; 4] {
    if chip.target == Some(Target::Sm90a) { &SKINNY_HOPPER } else { &SKINNY }
}

pub(super) const TILED: [Instance; 2] = [
    tiled(
        ["tiled_qkv_128", "tiled_residual_128", "tiled_swiglu_128", "tiled_logits_128"],
        128,
        32,
        4,
        2,
        85,
    ),
    tiled(
        ["tiled_qkv_256", "tiled_residual_256", "tiled_swiglu_256", "tiled_logits_256"],
        256,
        64,
        3,
        1,
        93,
    ),
];

/// The plan of `product` on `chip`, in the order of its shape.
///
/// # Panics
/// If a width is not a multiple of 8, an extent is 0, or the product exceeds 2^31 units of work.
pub fn gemm(chip: &Chip, product: Product) -> GemmPlan {
    gemm_in(chip, product, &[Order::of(chip.target, product.features, product.width)])
}

/// The same in one of `orders`: of many rows in that of the fastest plan, of few in the first.
///
/// # Panics
/// As [`gemm`], and if there is no order.
pub fn gemm_in(chip: &Chip, product: Product, orders: &[Order]) -> GemmPlan {
    assert!(product.rows > 0 && product.features > 0 && product.width > 0, "{product:?}");
    assert!(product.width.is_multiple_of(8), "{product:?}: rows must begin on 16 bytes");
    let fits = |instance: &&Instance| {
        instance.shared_bytes + BLOCK_OVERHEAD_BYTES <= chip.shared_per_block + 1024
    };
    let skinny = skinny_of(chip).iter().filter(fits).find(|of| of.tokens >= product.rows);
    let sized = |instance, order, one| Sized::new(chip, &product, instance, order, one);
    let planned = skinny.map(|instance| sized(instance, orders[0], true)).or_else(|| {
        let each = |of: &Order| {
            let order = *of;
            let both = move |instance| [false, true].map(|one| sized(instance, order, one));
            TILED.iter().filter(fits).flat_map(both)
        };
        orders.iter().flat_map(each).min_by_key(|sized| sized.clocks)
    });
    let sized = planned.expect("the smallest tile fits every chip with 99 KiB of shared memory");
    sized.plan(&product)
}

/// An instance with the grid that suits a product.
struct Sized {
    instance: Instance,
    features: usize,
    order: Order,
    tiles: usize,
    /// True if a block has one piece of a tile, false if it has all.
    piece_per_block: bool,
    grid: usize,
    tile_swizzle: usize,
    /// Estimated time, clocks; comparable between instances of many rows.
    clocks: u64,
}

impl Sized {
    fn new(
        chip: &Chip,
        product: &Product,
        instance: &Instance,
        order: Order,
        piece_per_block: bool,
    ) -> Sized {
        let features = product.features.next_multiple_of(FEATURES);
        let piece_per_block = piece_per_block && order.pieces > 1;
        let token_tiles = product.rows.div_ceil(instance.tokens);
        let tiles = features / FEATURES * token_tiles;
        let parts = if piece_per_block { tiles * order.pieces } else { tiles };
        let units = tiles * (order.width / instance.depth);
        assert!(units < 1 << 31, "{product:?}: more than 2^31 units");
        let resident = (chip.shared_per_multiprocessor
            / (instance.shared_bytes + BLOCK_OVERHEAD_BYTES))
            .clamp(1, instance.blocks) as usize;
        let multiprocessors = chip.multiprocessors as usize;
        let places = multiprocessors * resident;
        // Few rows: a block for each part, as one walks over no second tile.
        let streams = instance.tokens <= SKINNY[SKINNY.len() - 1].tokens;
        let grid = if streams { parts } else { parts.min(places) };
        // Tensor cores: 1024 multiply-adds a clock; L2: 64 bytes a clock, for the sums of a tile
        // written and read: of each piece but the last by a block that has all, of each by others.
        let depth = if piece_per_block { order.longest() } else { order.width };
        let depth_clocks =
            (FEATURES * instance.tokens * depth / 1024) as u64 * 100 / instance.efficiency;
        let moved = if piece_per_block { 2 } else { order.pieces - 1 };
        let sums_clocks = (moved * 2 * instance.tokens * FEATURES * 4 / 64) as u64;
        // Blocks that share one multiprocessor's rates.
        let sharers = grid.div_ceil(multiprocessors).min(resident) as u64;
        let waves = parts.div_ceil(places) as u64;
        let square = (places * FEATURES / instance.tokens).isqrt();
        Sized {
            instance: *instance,
            features,
            order,
            tiles,
            piece_per_block,
            grid,
            tile_swizzle: square.clamp(1, token_tiles),
            clocks: sharers * waves * (depth_clocks + sums_clocks),
        }
    }

    fn plan(&self, product: &Product) -> GemmPlan {
        let Product { epilogue, rows, features, width } = *product;
        let Order { width: padded, pieces } = self.order;
        let weights = self.features * padded * 2;
        let launch = LaunchPlan {
            kernel: self.instance.kernels[epilogue as usize],
            shape: Shape::new(&[("rows", rows), ("features", features), ("width", width)]),
            grid: [self.grid as u32, 1, 1],
            block: self.instance.threads,
            shared_bytes: self.instance.shared_bytes,
            splits: if self.piece_per_block { pieces as u32 } else { 1 },
            overlaps: true,
            cooperative: false,
            bytes: (weights + rows * width * 2 + rows * epilogue_bytes(epilogue, features)) as u64,
            flops: 2 * (rows * features * width) as u64,
        };
        let tile_floats = self.instance.tokens * FEATURES;
        let sums = self.order.workspace(self.tiles, self.grid, self.piece_per_block);
        GemmPlan {
            launch,
            product: *product,
            features: self.features,
            width: padded,
            order: self.order,
            tile_swizzle: self.tile_swizzle,
            partial_floats: sums * tile_floats,
            tile_counters: if self.piece_per_block { self.tiles } else { 0 },
        }
    }
}

/// Bytes that a product's end moves for one row of `features`.
pub(super) fn epilogue_bytes(epilogue: Epilogue, features: usize) -> usize {
    match epilogue {
        Epilogue::Qkv => features * 2,
        // The residual stream in and out, and the next operand.
        Epilogue::Residual => features * 10,
        Epilogue::Swiglu => features,
        Epilogue::Logits => features * 4,
    }
}

#[cfg(test)]
mod tests;
