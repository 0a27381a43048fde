//! Geometry of the matrix products: which kernel, how many blocks, how the work is shared.
//!
//! A product of up to 64 rows streams its weights once (`skinny_*`), one of more rows goes through
//! shared memory (`tiled_*`). Both cut the output into tiles of 128 features. Few rows: the grid
//! shares the line of all tiles' units in equal pieces (stream-K, kernels/common/stream.cuh). Many:
//! as many blocks as tiles, every tile whole, or as many as the chip holds, which then share
//! the tiles of the last wave (hybrid stream-K).

use super::shuffle::{FEATURES, WIDTH};
use super::{Chip, LaunchPlan, Shape, resident};

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
    /// Token tiles walked together.
    pub tile_swizzle: usize,
    /// Floats of workspace for sums of shared tiles; 0 where none is shared.
    pub partial_floats: usize,
    /// Counters of shared tiles, zero before the first launch.
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
pub(super) const SKINNY_STEP_BYTES: usize = 8 * 1024;
/// Shared memory that each resident block costs beyond what it asks for: the driver's, and the
/// kernels' own static part.
pub(super) const BLOCK_OVERHEAD_BYTES: u32 = 1024 + 128;

const fn skinny(
    kernels: [&'static str; 4],
    tokens: usize,
    weight_stages: usize,
    stages: usize,
    blocks: u32,
) -> Instance {
    // Stages of weights, stages of activations, the sums, the row scales.
    let shared = weight_stages * SKINNY_STEP_BYTES
        + stages * tokens * 128 * 2
        + tokens * ROW_BYTES
        + tokens * 4;
    Instance {
        kernels,
        tokens,
        threads: 256,
        depth: 128,
        shared_bytes: shared as u32,
        blocks,
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

/// Stages of weights, stages of activations, blocks: at 32 and 64 rows as many as leave room for so
/// many blocks on a multiprocessor of an A100 (164 KiB), at 32 rows three of activations, to have
/// room for a fifth of weights; at 8 as many as leave the megakernel's shared memory to attention's
/// rings, at 16 the same. In flight are 80, 80, 64 and 56 KiB a multiprocessor;
/// Little's law asks for about 36 on an H200 (4.8 TB/s over 132, 1 us under load), 18 on an A100.
pub(super) const SKINNY: [Instance; 4] = [
    skinny(["skinny_qkv_8", "skinny_residual_8", "skinny_swiglu_8", "skinny_logits_8"], 8, 6, 4, 2),
    skinny(
        ["skinny_qkv_16", "skinny_residual_16", "skinny_swiglu_16", "skinny_logits_16"],
        16,
        6,
        4,
        2,
    ),
    skinny(
        ["skinny_qkv_32", "skinny_residual_32", "skinny_swiglu_32", "skinny_logits_32"],
        32,
        5,
        3,
        2,
    ),
    skinny(
        ["skinny_qkv_64", "skinny_residual_64", "skinny_swiglu_64", "skinny_logits_64"],
        64,
        8,
        4,
        1,
    ),
];

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

/// Fewest units of a block that shares a tile: below that, adding up costs more than it saves.
pub(super) const LEAST_UNITS: usize = 2;

/// The plan of `product` on `chip`.
///
/// # Panics
/// If a width is not a multiple of 8, an extent is 0, or the product exceeds 2^31 units of work.
pub fn gemm(chip: &Chip, product: Product) -> GemmPlan {
    assert!(product.rows > 0 && product.features > 0 && product.width > 0, "{product:?}");
    assert!(product.width.is_multiple_of(8), "{product:?}: rows must begin on 16 bytes");
    let fits = |instance: &&Instance| {
        instance.shared_bytes + BLOCK_OVERHEAD_BYTES <= chip.shared_per_block + 1024
    };
    let skinny = SKINNY.iter().filter(fits).find(|instance| instance.tokens >= product.rows);
    let sized = skinny.map(|instance| Sized::new(chip, &product, instance)).or_else(|| {
        let all = TILED.iter().filter(fits).map(|instance| Sized::new(chip, &product, instance));
        all.min_by_key(|sized| sized.clocks)
    });
    let sized = sized.expect("the smallest tile fits every chip with 99 KiB of shared memory");
    sized.plan(chip, &product)
}

/// An instance with the grid that suits a product.
struct Sized {
    instance: Instance,
    features: usize,
    width: usize,
    /// Tiles of the line that all blocks share: the last ones.
    shared_tiles: usize,
    /// Units of a tile.
    depth: usize,
    grid: usize,
    tile_swizzle: usize,
    /// Estimated time, clocks; comparable between instances.
    clocks: u64,
}

impl Sized {
    fn new(chip: &Chip, product: &Product, instance: &Instance) -> Sized {
        let features = product.features.next_multiple_of(FEATURES);
        let width = product.width.next_multiple_of(WIDTH);
        let token_tiles = product.rows.div_ceil(instance.tokens);
        let tiles = features / FEATURES * token_tiles;
        let depth = width / instance.depth;
        let units = tiles * depth;
        assert!(units < 1 << 31, "{product:?}: more than 2^31 units");
        let resident = (chip.shared_per_multiprocessor
            / (instance.shared_bytes + BLOCK_OVERHEAD_BYTES))
            .clamp(1, instance.blocks) as usize;
        let multiprocessors = chip.multiprocessors as usize;
        let places = multiprocessors * resident;
        // Blocks that share one multiprocessor's rates, of a grid of so many.
        let sharers = |grid: usize| grid.div_ceil(multiprocessors).min(resident) as u64;
        // Tensor cores: 1024 multiply-adds a clock; L2: 64 bytes a clock. Sharing writes two tiles
        // a block, and reads about as much.
        let unit_clocks =
            (FEATURES * instance.tokens * instance.depth / 1024) as u64 * 100 / instance.efficiency;
        let sharing_clocks = (instance.tokens * FEATURES * 4 * 4 / 64) as u64;
        let shared = places.min(units.div_ceil(LEAST_UNITS)).max(1);
        // Few rows wait for memory: there every multiprocessor streams its equal share, whatever
        // adding up costs.
        let streams = instance.tokens <= SKINNY[SKINNY.len() - 1].tokens;
        let whole_tiles = if streams { 0 } else { tiles / shared * shared };
        let rest = ((tiles - whole_tiles) * depth) as u64;
        let longest = (whole_tiles / shared * depth) as u64 * unit_clocks
            + (rest * unit_clocks).div_ceil(shared as u64);
        let shared_clocks = sharers(shared) * (longest + sharing_clocks);
        let whole_clocks =
            sharers(tiles) * tiles.div_ceil(places) as u64 * depth as u64 * unit_clocks;
        // A block without a unit would be waited for at a tile between those of its neighbours.
        let is_fed = rest == 0 || rest + 1 >= (LEAST_UNITS * shared) as u64;
        let is_whole = !streams && (!is_fed || whole_clocks <= shared_clocks);
        let grid = if is_whole { tiles } else { shared };
        let square = (places * FEATURES / instance.tokens).isqrt();
        Sized {
            instance: *instance,
            features,
            width,
            shared_tiles: if streams { tiles } else { tiles % grid },
            depth,
            grid,
            tile_swizzle: square.clamp(1, token_tiles),
            clocks: if is_whole { whole_clocks } else { shared_clocks },
        }
    }

    fn plan(&self, chip: &Chip, product: &Product) -> GemmPlan {
        let Product { epilogue, rows, features, width } = *product;
        let splits = self.splits();
        let weights = self.features * self.width * 2;
        let kernel = self.instance.kernels[epilogue as usize];
        let launch = LaunchPlan {
            kernel,
            shape: Shape::new(&[("rows", rows), ("features", features), ("width", width)]),
            grid: [self.grid as u32, 1, 1],
            block: self.instance.threads,
            shared_bytes: self.shared_bytes(chip, kernel),
            splits: splits as u32,
            overlaps: true,
            cooperative: false,
            bytes: (weights + rows * width * 2 + rows * epilogue_bytes(epilogue, features)) as u64,
            flops: 2 * (rows * features * width) as u64,
        };
        let tile_floats = self.instance.tokens * FEATURES;
        GemmPlan {
            launch,
            product: *product,
            features: self.features,
            width: self.width,
            tile_swizzle: self.tile_swizzle,
            partial_floats: if splits > 1 { 2 * self.grid * tile_floats } else { 0 },
            tile_counters: if splits > 1 { self.shared_tiles } else { 0 },
        }
    }

    /// Dynamic shared memory with which a multiprocessor holds no more blocks than the grid counts
    /// on. An H200 had room for three of `skinny_residual_8`, so that some had three and some one:
    /// 38 us, where `skinny_residual_16` took 32.
    fn shared_bytes(&self, chip: &Chip, kernel: &str) -> u32 {
        let Instance { threads, shared_bytes, blocks, .. } = self.instance;
        let more = chip.shared_per_multiprocessor / (blocks + 1);
        match resident(chip, kernel, threads, shared_bytes) {
            Some(fit) if fit > blocks => (more - 1024).max(shared_bytes).next_multiple_of(16),
            _ => shared_bytes,
        }
    }

    /// Largest number of blocks that share one tile.
    fn splits(&self) -> usize {
        let units = self.shared_tiles * self.depth;
        let owner = |unit: usize| ((unit + 1) * self.grid - 1) / units;
        let sharers =
            |tile: usize| owner((tile + 1) * self.depth - 1) - owner(tile * self.depth) + 1;
        (0..self.shared_tiles).map(sharers).max().unwrap_or(1)
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
