//! Geometry of Hopper's products of more than a few rows (kernels/hopper/wgmma_*): tiles of 128
//! features x 64, 128 or 256 tokens, whole in all waves but the last (hybrid stream-K). In
//! clusters, two blocks have tiles of the same tokens side by side, and TMA brings their
//! activations to both.

use crate::cuda::plan::gemm::{
    Epilogue, GemmPlan, LEAST_UNITS, Product, ROW_BYTES, epilogue_bytes,
};
use crate::cuda::plan::shuffle::{FEATURES, WIDTH};
use crate::cuda::plan::{Chip, LaunchPlan, Shape};

/// Fewest rows of a product that has a plan here: fewer fill no tile.
pub const LEAST_ROWS: usize = 32;
/// Rows of the box that the copy engine fetches.
pub const BOX: usize = 64;
/// Depth of a stage, and columns of that box.
pub const DEPTH: usize = 64;
/// Tokens whose sums are ended at a time.
pub(in crate::cuda::plan) const PASS: usize = 64;
pub(in crate::cuda::plan) const THREADS: u32 = 384;

/// Depth of a unit of the line: two stages.
const UNIT_DEPTH: usize = 2 * DEPTH;
/// Bytes that a multiprocessor reads from memory in a clock: 3.35 TB/s over 132 at 1.755 GHz.
const MEMORY_BYTES: usize = 14;
/// Bytes that it moves to or from L2 in a clock.
const L2_BYTES: usize = 64;
/// Multiply-adds of its tensor cores in a clock.
const MULTIPLY_ADDS: usize = 2048;

/// Blocks of a cluster: columns of the grid, each with its own tile of every pair.
pub(in crate::cuda::plan) const CLUSTER: usize = 2;

/// A compiled instance.
#[derive(Clone, Copy)]
pub(in crate::cuda::plan) struct Instance {
    /// Names by [`Epilogue`], without logits.
    pub(in crate::cuda::plan) kernels: [&'static str; 3],
    /// Tokens of a tile.
    pub(in crate::cuda::plan) tokens: usize,
    /// Stages of the ring, as many as fit.
    pub(in crate::cuda::plan) stages: usize,
    /// Blocks of a cluster; 1: none.
    pub(in crate::cuda::plan) cluster: usize,
}

pub(in crate::cuda::plan) const INSTANCES: [Instance; 3] = [
    Instance {
        kernels: ["wgmma_qkv_64", "wgmma_residual_64", "wgmma_swiglu_64"],
        tokens: 64,
        stages: 8,
        cluster: 1,
    },
    Instance {
        kernels: ["wgmma_qkv_128", "wgmma_residual_128", "wgmma_swiglu_128"],
        tokens: 128,
        stages: 6,
        cluster: 1,
    },
    Instance {
        kernels: ["wgmma_qkv_256", "wgmma_residual_256", "wgmma_swiglu_256"],
        tokens: 256,
        stages: 4,
        cluster: 1,
    },
];

/// The largest tile in clusters. With fewer tokens a product waits for memory rather than L2.
pub(in crate::cuda::plan) const IN_CLUSTERS: Instance = Instance {
    kernels: ["wgmma_qkv_cluster_256", "wgmma_residual_cluster_256", "wgmma_swiglu_cluster_256"],
    cluster: CLUSTER,
    ..INSTANCES[2]
};

impl Instance {
    /// Dynamic shared memory: stages, sums of one pass, row scales, two barriers a stage, the
    /// fix-up's word.
    fn shared_bytes(&self) -> usize {
        self.stages * (FEATURES + self.tokens) * DEPTH * 2
            + PASS * ROW_BYTES
            + self.tokens * 4
            + self.stages * 16
            + 16
    }

    /// Estimated clocks of a unit: weights from memory, or products.
    fn unit_clocks(&self) -> usize {
        let weights = FEATURES * UNIT_DEPTH * 2 / MEMORY_BYTES;
        weights.max(FEATURES * self.tokens * UNIT_DEPTH / MULTIPLY_ADDS)
    }

    /// Estimated clocks of a fix-up: two tiles a block written, and about as much read.
    fn fix_up_clocks(&self) -> usize {
        self.tokens * FEATURES * 4 * 4 / L2_BYTES
    }
}

/// How the tiles of a product, or of one of several columns, are shared by the blocks.
struct Share {
    grid: usize,
    /// Tiles of the last wave that all blocks share; 0: every tile has one block.
    rest: usize,
}

impl Share {
    fn new(instance: &Instance, multiprocessors: usize, tiles: usize, depth: usize) -> Share {
        // Each block has a few units, or it would be waited for at a tile that it has no part of.
        let grid = multiprocessors.min((tiles * depth / LEAST_UNITS).max(1));
        let rest = tiles % grid;
        let saved = depth.saturating_sub((rest * depth).div_ceil(grid));
        let pays = saved * instance.unit_clocks() > instance.fix_up_clocks();
        if pays && rest * depth >= LEAST_UNITS * grid {
            Share { grid, rest }
        } else {
            Share { grid: tiles.min(multiprocessors), rest: 0 }
        }
    }
}

/// The plan of `product` on a Hopper chip; `None` for logits, whose rows are listed and not
/// neighbours, and below [`LEAST_ROWS`] rows.
pub fn gemm(chip: &Chip, product: Product) -> Option<GemmPlan> {
    let fits = |instance: &&Instance| instance.tokens >= product.rows;
    let instance = INSTANCES.iter().find(fits).unwrap_or(&INSTANCES[INSTANCES.len() - 1]);
    plan(chip, product, instance)
}

/// The plan of `product` in clusters; `None` where there is none: for rows that a smaller tile
/// holds, features that are no whole pairs of tiles, or a chip of one multiprocessor.
pub fn gemm_in_clusters(chip: &Chip, product: Product) -> Option<GemmPlan> {
    let is_large = product.rows > INSTANCES[INSTANCES.len() - 2].tokens;
    let are_pairs = product.features.div_ceil(FEATURES).is_multiple_of(CLUSTER);
    let has_room = chip.multiprocessors as usize >= CLUSTER;
    if is_large && are_pairs && has_room { plan(chip, product, &IN_CLUSTERS) } else { None }
}

fn plan(chip: &Chip, product: Product, instance: &Instance) -> Option<GemmPlan> {
    let Product { epilogue, rows, features, width } = product;
    assert!(width.is_multiple_of(8), "{product:?}: rows must begin on 16 bytes");
    let kernel = match epilogue {
        Epilogue::Qkv => instance.kernels[0],
        Epilogue::Residual => instance.kernels[1],
        Epilogue::Swiglu => instance.kernels[2],
        Epilogue::Logits => return None,
    };
    if rows < LEAST_ROWS {
        return None;
    }
    let (n, k) = (features.next_multiple_of(FEATURES), width.next_multiple_of(WIDTH));
    let token_tiles = rows.div_ceil(instance.tokens);
    // Of a column: each has its own tiles and multiprocessors, and the same cut.
    let columns = instance.cluster;
    let (tiles, depth) = (n / FEATURES / columns * token_tiles, k / UNIT_DEPTH);
    let multiprocessors = chip.multiprocessors as usize / columns;
    assert!(tiles * depth < 1 << 31, "{product:?}: more than 2^31 units");
    let Share { grid, rest } = Share::new(instance, multiprocessors, tiles, depth);
    // Most blocks that have a part of one tile.
    let splits = if rest == 0 { 1 } else { grid.div_ceil(rest) + 1 };
    let launch = LaunchPlan {
        kernel,
        shape: Shape::new(&[("rows", rows), ("features", features), ("width", width)]),
        grid: [grid as u32, columns as u32, 1],
        block: THREADS,
        shared_bytes: instance.shared_bytes() as u32,
        splits: splits as u32,
        overlaps: true,
        cooperative: false,
        bytes: (n * k * 2 + rows * width * 2 + rows * epilogue_bytes(epilogue, features)) as u64,
        flops: 2 * (rows * features * width) as u64,
    };
    let square = (multiprocessors * columns * FEATURES / instance.tokens).isqrt();
    Some(GemmPlan {
        launch,
        product,
        features: n,
        width: k,
        tile_swizzle: square.clamp(1, token_tiles),
        partial_floats: if rest > 0 { 2 * grid * columns * instance.tokens * FEATURES } else { 0 },
        tile_counters: rest * columns * (instance.tokens / PASS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rows: usize, features: usize, width: usize) -> GemmPlan {
        let product = Product { epilogue: Epilogue::Residual, rows, features, width };
        gemm(&Chip::H200, product).expect("a plan")
    }

    #[test]
    fn the_tile_is_the_smallest_that_holds_all_rows() {
        for (rows, kernel) in [(32, 64), (64, 64), (65, 128), (128, 128), (129, 256), (4096, 256)] {
            let kernel = format!("wgmma_residual_{kernel}");
            assert_eq!(plan(rows, 4096, 4096).launch.kernel, kernel, "{rows} rows");
        }
        let few = Product { epilogue: Epilogue::Swiglu, rows: 31, features: 64, width: 64 };
        assert!(gemm(&Chip::H200, few).is_none());
    }

    /// Llama-3-8B's O: 32 tiles of 128 features for 132 multiprocessors.
    #[test]
    fn below_a_wave_all_multiprocessors_share() {
        let plan = plan(64, 4096, 4096);
        assert_eq!((plan.launch.grid[0], plan.tile_counters), (132, 32));
        assert_eq!(plan.partial_floats, 2 * 132 * 64 * 128);
        assert!(plan.launch.splits > 4);
    }

    /// 512 tiles: three waves and 116 tiles: sharing saves an eighth of a wave.
    #[test]
    fn whole_waves_are_not_shared() {
        let plan = plan(4096, 4096, 14336);
        assert_eq!((plan.launch.grid[0], plan.tile_counters), (132, 116 * 4));
        // A depth at which the fix-up costs more than it saves.
        let short = self::plan(4096, 4096, 256);
        assert_eq!((short.launch.grid[0], short.partial_floats, short.launch.splits), (132, 0, 1));
    }

    #[test]
    fn no_block_has_less_than_two_units() {
        let plan = plan(64, 128, 512);
        assert_eq!((plan.launch.grid[0], plan.tile_counters), (2, 1));
        let tiny = self::plan(64, 128, 128);
        assert_eq!((tiny.launch.grid[0], tiny.partial_floats), (1, 0));
    }

    fn in_clusters(chip: &Chip, rows: usize, features: usize) -> Option<GemmPlan> {
        let product = Product { epilogue: Epilogue::Swiglu, rows, features, width: 4096 };
        gemm_in_clusters(chip, product)
    }

    /// Two columns, each with half of the tiles and of the multiprocessors, cut as the other.
    #[test]
    fn a_cluster_has_a_pair_of_tiles() {
        let plan = in_clusters(&Chip::H200, 2048, 28672).expect("a plan");
        // 8 x 112 pairs on 66 clusters: 13 waves and 38 pairs.
        assert_eq!(plan.launch.grid, [66, 2, 1]);
        assert_eq!(plan.launch.kernel, "wgmma_swiglu_cluster_256");
        assert_eq!(plan.tile_counters, 38 * 2 * 4);
        assert_eq!(plan.partial_floats, 2 * 132 * 256 * 128);
    }

    #[test]
    fn what_makes_no_whole_clusters_has_no_plan_in_them() {
        assert!(in_clusters(&Chip::H200, 129, 256).is_some());
        // Rows of a smaller tile; an odd number of tiles.
        assert!(in_clusters(&Chip::H200, 128, 256).is_none());
        assert!(in_clusters(&Chip::H200, 129, 384).is_none());
        let odd = Chip { multiprocessors: 7, ..Chip::H200 };
        assert_eq!(in_clusters(&odd, 4096, 4096).expect("a plan").launch.grid[0], 3);
        assert!(in_clusters(&Chip { multiprocessors: 1, ..odd }, 4096, 4096).is_none());
    }
}
