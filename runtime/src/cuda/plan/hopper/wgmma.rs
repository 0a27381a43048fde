//! Geometry of Hopper's products of more than a few rows (kernels/hopper/wgmma_*): tiles of 128
//! features x 128 or 256 tokens, a block for each or for each piece of it (plan/order.rs). In
//! clusters, two blocks have tiles of the same tokens side by side, and TMA brings their
//! activations to both.

use crate::cuda::plan::gemm::{Epilogue, GemmPlan, Product, ROW_BYTES, epilogue_bytes};
use crate::cuda::plan::order::Order;
use crate::cuda::plan::shuffle::FEATURES;
use crate::cuda::plan::{Chip, LaunchPlan, Shape};

/// Fewest rows of a product that has a plan here. On an H200 `skinny_*` of up to 64 rows is faster.
pub const LEAST_ROWS: usize = 65;
/// Rows of the box that the copy engine fetches.
pub const BOX: usize = 64;
/// Depth of a stage, and columns of that box.
pub const DEPTH: usize = 64;
/// Tokens whose sums are ended at a time.
pub(in crate::cuda::plan) const PASS: usize = 64;
pub(in crate::cuda::plan) const THREADS: u32 = 384;

/// Depth of a unit: two stages.
const UNIT_DEPTH: usize = 2 * DEPTH;
/// Bytes that L2 gives each multiprocessor in a clock where all read, and the most that one takes.
/// An H200's `wgmma_*_256` without clusters read 5.9 to 7.1 TB/s (25 to 31 bytes) in products of
/// 2,048 rows.
const L2_BYTES: usize = 28;
const MAX_L2_BYTES: usize = 64;
/// Multiply-adds of its tensor cores in a clock.
const MULTIPLY_ADDS: usize = 2048;
/// Clocks that a fix-up adds for each pass of its tile. An H200's products of 128 rows, two passes,
/// took 20 to 25 us longer than their units at the rate of L2, those of 256 rows, four passes, 34
/// to 48 us (benches/records/2026-11-27-h200.jsonl).
const FIX_UP_CLOCKS: usize = 22_000;
/// Clocks that a block takes for each further piece of a tile that it has whole, for a token of the
/// tile: its sums written to L2 and read again at 32 bytes a clock each, while it multiplies
/// nothing. A forecast.
const CARRY_CLOCKS: usize = FEATURES * 4 * 2 / 32;

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

pub(in crate::cuda::plan) const INSTANCES: [Instance; 2] = [
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
    ..INSTANCES[1]
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

    /// Estimated clocks of a unit: products, or operands from L2, which `active` of the
    /// multiprocessors read at one time. A cluster reads its activations once.
    fn unit_clocks(&self, multiprocessors: usize, active: usize) -> usize {
        let rate = (L2_BYTES * multiprocessors / active).min(MAX_L2_BYTES);
        let operands = (FEATURES + self.tokens / self.cluster) * UNIT_DEPTH * 2 / rate;
        operands.max(FEATURES * self.tokens * UNIT_DEPTH / MULTIPLY_ADDS)
    }
}

/// A plan of a product, one of several.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The plan.
    pub plan: GemmPlan,
    /// Estimated time, clocks; comparable between those of a product.
    pub clocks: usize,
}

/// The fastest of all [`candidates_in`] these `orders`; `None` if there is none.
pub fn gemm(chip: &Chip, product: Product, orders: &[Order]) -> Option<GemmPlan> {
    let all = orders.iter().flat_map(|&order| candidates_in(chip, product, order));
    all.min_by_key(|of| of.clocks).map(|of| of.plan)
}

/// The plans of `product` on a Hopper chip in the order of its shape, as [`candidates_in`].
///
/// # Panics
/// As [`candidates_in`].
pub fn candidates(chip: &Chip, product: Product) -> Vec<Candidate> {
    candidates_in(chip, product, Order::of(chip.target, product.features, product.width))
}

/// The plans of `product` on a Hopper chip: of each instance, with a block for each tile, and where
/// tiles have pieces with a block for each of these. None for logits, whose rows are listed and not
/// neighbours, and below [`LEAST_ROWS`] rows.
///
/// # Panics
/// If the width is not a multiple of 8, or the product exceeds 2^31 units of work.
pub fn candidates_in(chip: &Chip, product: Product, order: Order) -> Vec<Candidate> {
    assert!(product.width.is_multiple_of(8), "{product:?}: rows must begin on 16 bytes");
    if product.rows < LEAST_ROWS || product.epilogue == Epilogue::Logits {
        return Vec::new();
    }
    // Of equal ones the first is taken: it reads its operands less often.
    let [small, large] = INSTANCES;
    let instances = [IN_CLUSTERS, large, small].into_iter().filter(|instance| {
        let is_filled = product.rows > small.tokens || instance.tokens == small.tokens;
        let feature_tiles = product.features.div_ceil(FEATURES);
        let columns = instance.cluster;
        let has_room = chip.multiprocessors as usize >= columns;
        is_filled && feature_tiles.is_multiple_of(columns) && has_room
    });
    let by = if order.pieces > 1 { &[false, true][..] } else { &[false] };
    let each = |of: Instance| {
        by.iter().map(move |&piece_per_block| candidate(chip, product, &of, order, piece_per_block))
    };
    instances.flat_map(each).collect()
}

/// The plan by `instance` in `order`, in which a block has one piece of a tile, or all.
fn candidate(
    chip: &Chip,
    product: Product,
    instance: &Instance,
    order: Order,
    piece_per_block: bool,
) -> Candidate {
    let Product { epilogue, rows, features, width } = product;
    let n = features.next_multiple_of(FEATURES);
    let Order { width: k, pieces } = order;
    let token_tiles = rows.div_ceil(instance.tokens);
    // Of a column: each has its own tiles and multiprocessors, and the same cut.
    let columns = instance.cluster;
    let tiles = n / FEATURES / columns * token_tiles;
    let multiprocessors = chip.multiprocessors as usize / columns;
    assert!(tiles * (k / UNIT_DEPTH) < 1 << 31, "{product:?}: more than 2^31 units");
    let parts = if piece_per_block { tiles * pieces } else { tiles };
    let grid = parts.min(multiprocessors);
    let passes = instance.tokens / PASS;
    let (depth, added) = match piece_per_block {
        true => (order.longest(), passes * FIX_UP_CLOCKS),
        false => (k, (pieces - 1) * instance.tokens * CARRY_CLOCKS),
    };
    let unit_clocks = instance.unit_clocks(multiprocessors, grid);
    let clocks = parts.div_ceil(grid) * (depth / UNIT_DEPTH * unit_clocks + added);
    let launch = LaunchPlan {
        kernel: instance.kernels[epilogue as usize],
        shape: Shape::new(&[("rows", rows), ("features", features), ("width", width)]),
        grid: [grid as u32, columns as u32, 1],
        block: THREADS,
        shared_bytes: instance.shared_bytes() as u32,
        splits: if piece_per_block { pieces as u32 } else { 1 },
        overlaps: true,
        cooperative: false,
        bytes: (n * k * 2 + rows * width * 2 + rows * epilogue_bytes(epilogue, features)) as u64,
        flops: 2 * (rows * features * width) as u64,
    };
    let square = (multiprocessors * columns * FEATURES / instance.tokens).isqrt();
    let sums = order.workspace(tiles, grid, piece_per_block);
    let plan = GemmPlan {
        launch,
        product,
        features: n,
        width: k,
        order,
        tile_swizzle: square.clamp(1, token_tiles),
        partial_floats: sums * columns * instance.tokens * FEATURES,
        tile_counters: if piece_per_block { tiles * columns * passes } else { 0 },
    };
    Candidate { plan, clocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: usize, features: usize, width: usize) -> Vec<Candidate> {
        let product = Product { epilogue: Epilogue::Residual, rows, features, width };
        candidates(&Chip::H200, product)
    }

    fn best(rows: usize, features: usize, width: usize) -> (&'static str, [u32; 3], bool) {
        let product = Product { epilogue: Epilogue::Residual, rows, features, width };
        let LaunchPlan { kernel, grid, splits, .. } =
            gemm(&Chip::H200, product, &[Order::of(Chip::H200.target, features, width)])
                .expect("a plan")
                .launch;
        (kernel, grid, splits > 1)
    }

    #[test]
    fn few_rows_and_logits_have_no_plan() {
        assert!(of(64, 64, 64).is_empty() && !of(65, 64, 64).is_empty());
        let logits = Product { epilogue: Epilogue::Logits, rows: 99, features: 64, width: 64 };
        assert!(candidates(&Chip::H200, logits).is_empty());
    }

    /// Llama-3-8B: a fix-up costs more than multiprocessors without a tile, except where tiles are
    /// few and deep.
    #[test]
    fn tiles_are_whole_unless_they_are_few_and_deep() {
        assert_eq!(best(128, 4096, 4096), ("wgmma_residual_128", [32, 1, 1], false));
        assert_eq!(best(256, 4096, 4096), ("wgmma_residual_128", [64, 1, 1], false));
        assert_eq!(best(128, 4096, 14336), ("wgmma_residual_128", [128, 1, 1], true));
        assert_eq!(best(256, 4096, 14336), ("wgmma_residual_128", [64, 1, 1], false));
        // 112 pairs on 66 clusters: two waves; of 2,048 rows 14.
        assert_eq!(best(256, 28672, 4096), ("wgmma_residual_cluster_256", [66, 2, 1], false));
        assert_eq!(best(2048, 28672, 4096), ("wgmma_residual_cluster_256", [66, 2, 1], false));
    }

    #[test]
    fn a_plan_has_room_for_a_sum_of_each_piece_or_a_total_of_each_block() {
        // 32 tiles of four pieces for 132 multiprocessors.
        let [whole, pieces] = [0, 1].map(|at| of(128, 4096, 4096)[at].plan);
        assert_eq!((pieces.launch.grid[0], pieces.tile_counters), (128, 2 * 32));
        assert_eq!((pieces.partial_floats, pieces.launch.splits), (128 * 128 * 128, 4));
        assert_eq!((whole.launch.grid[0], whole.tile_counters, whole.launch.splits), (32, 0, 1));
        assert_eq!(whole.partial_floats, 32 * 128 * 128);
        // One piece: nothing to add.
        let plans = of(128, 28672, 4096);
        assert_eq!((plans.len(), plans[0].plan.partial_floats), (1, 0));
    }

    /// Two columns, each with half of the tiles and of the multiprocessors, cut as the other.
    #[test]
    fn a_cluster_has_a_pair_of_tiles() {
        let [whole, pieces, ..] = of(2048, 4096, 4096)[..] else { panic!("no plans") };
        assert_eq!([whole, pieces].map(|of| of.plan.launch.grid), [[66, 2, 1]; 2]);
        assert_eq!(pieces.plan.launch.kernel, "wgmma_residual_cluster_256");
        // 128 pairs of tiles.
        assert_eq!(pieces.plan.tile_counters, 128 * 2 * 4);
        assert_eq!(pieces.plan.partial_floats, 128 * 2 * 4 * 256 * 128);
        assert_eq!(whole.plan.partial_floats, 132 * 256 * 128);
    }

    #[test]
    fn what_makes_no_whole_clusters_has_no_plan_in_them() {
        let in_clusters = |chip: &Chip, rows, features| {
            let epilogue = Epilogue::Swiglu;
            let product = Product { epilogue, rows, features, width: 4096 };
            let all = candidates(chip, product);
            all.into_iter().map(|of| of.plan.launch).find(|plan| plan.grid[1] == 2)
        };
        assert!(in_clusters(&Chip::H200, 129, 256).is_some());
        // Rows of a smaller tile; an odd number of tiles.
        assert!(in_clusters(&Chip::H200, 128, 256).is_none());
        assert!(in_clusters(&Chip::H200, 129, 384).is_none());
        let odd = Chip { multiprocessors: 7, ..Chip::H200 };
        assert_eq!(in_clusters(&odd, 4096, 4096).expect("a plan").grid[0], 3);
        assert!(in_clusters(&Chip { multiprocessors: 1, ..odd }, 4096, 4096).is_none());
    }
}
