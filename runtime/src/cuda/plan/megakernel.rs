//! Geometry of the kernel that runs all layers of a decode step: a resident grid, and each stage
//! shared out as its own kernel shares it.

use super::attention::DecodePlan;
use super::gemm::GemmPlan;
use super::{Chip, LaunchPlan, Shape, resident};
use std::ops::Range;

/// Most rows that it is planned for: with more, what is between kernels no longer counts.
pub const MAX_ROWS: usize = 4;
/// Stages of a layer, and so barriers, but that the launch's end is the last one.
pub const STAGES: usize = 5;
/// Depth of a unit of weights, and its bytes: 128 features.
const UNIT_DEPTH: usize = 64;
const UNIT_BYTES: u32 = 128 * UNIT_DEPTH as u32 * 2;

/// The products of a layer, as their own kernels would be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Products {
    /// Queries, keys and values.
    pub qkv: GemmPlan,
    /// Output projection of attention.
    pub o: GemmPlan,
    /// Gate and up.
    pub gate_up: GemmPlan,
    /// Down.
    pub down: GemmPlan,
}

impl Products {
    /// In the order of the stages.
    pub fn all(&self) -> [&GemmPlan; 4] {
        [&self.qkv, &self.o, &self.gate_up, &self.down]
    }
}

/// Planned layers of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MegakernelPlan {
    /// The launch; bytes and flops are one layer's.
    pub launch: LaunchPlan,
    /// The products: each is shared out by its own plan's grid, whatever the launch's grid.
    pub products: Products,
    /// The same of attention.
    pub attention: DecodePlan,
    /// Units of O's weights that a block asks into L2 before attention.
    pub o_units: usize,
}

impl MegakernelPlan {
    /// Barriers of the grid in a launch over `layers`.
    pub fn barriers(&self, layers: &Range<usize>) -> usize {
        (STAGES * layers.len()).saturating_sub(1)
    }
}

/// The plan for layers of `products` and `attention`, all of the same few rows; `None` where there
/// are more rows, or the chip has no room for a block.
pub fn megakernel(
    chip: &Chip,
    products: &Products,
    attention: &DecodePlan,
) -> Option<MegakernelPlan> {
    let rows = products.qkv.product.rows;
    let is_skinny = |plan: &GemmPlan| {
        let kernel = plan.launch.kernel;
        plan.product.rows == rows && kernel.starts_with("skinny_") && kernel.ends_with("_8")
    };
    if rows > MAX_ROWS || !products.all().into_iter().all(is_skinny) {
        return None;
    }
    let heads = attention.launch.kernel.strip_prefix("attention_decode_")?;
    let (_, entry) = trail_ptx::find(&format!("decode_megakernel_{heads}"))?;
    let shared_bytes = attention.launch.shared_bytes.max(products.qkv.launch.shared_bytes);
    let block = products.qkv.launch.block;
    let places = chip.multiprocessors * resident(chip, entry.name, block, shared_bytes)?;
    // No more than any stage has use for: who does nothing would be waited for all the same.
    let pieces = attention.launch.grid.iter().product::<u32>();
    let shares = products.all().map(|plan| plan.launch.grid[0]);
    let grid = shares.into_iter().fold(pieces, u32::max).min(places);
    let launches = products.all().map(|plan| plan.launch);
    let sum =
        |of: fn(&LaunchPlan) -> u64| of(&attention.launch) + launches.iter().map(of).sum::<u64>();
    let o = products.o;
    // Half of L2 at most, and no more than a block has.
    let o_share = o.order.longest() / UNIT_DEPTH;
    let o_units = (chip.l2_bytes / 2 / (o.launch.grid[0] * UNIT_BYTES)) as usize;
    let launch = LaunchPlan {
        kernel: entry.name,
        shape: Shape::new(&[
            ("rows", rows),
            ("width", products.qkv.product.width),
            ("qkv", products.qkv.product.features),
            ("o", o.product.width),
            ("inner", products.down.product.width),
            ("pieces", pieces as usize),
        ]),
        grid: [grid, 1, 1],
        block,
        shared_bytes,
        splits: attention.launch.splits,
        overlaps: false,
        cooperative: true,
        bytes: sum(|launch| launch.bytes),
        flops: sum(|launch| launch.flops),
    };
    Some(MegakernelPlan {
        launch,
        products: *products,
        attention: *attention,
        o_units: o_units.min(o_share),
    })
}

#[cfg(test)]
mod tests {
    use super::super::attention::{Heads, decode};
    use super::super::gemm::{Epilogue, Product, gemm};
    use super::*;

    fn plan(chip: &Chip, rows: usize, heads: Heads, [d, ff]: [usize; 2]) -> Option<MegakernelPlan> {
        let product =
            |epilogue, features, width| gemm(chip, Product { epilogue, rows, features, width });
        let products = Products {
            qkv: product(Epilogue::Qkv, heads.row() + 2 * heads.kv_heads * heads.head_dim, d),
            o: product(Epilogue::Residual, d, heads.row()),
            gate_up: product(Epilogue::Swiglu, 2 * ff, d),
            down: product(Epilogue::Residual, d, ff),
        };
        megakernel(chip, &products, &decode(chip, rows, heads, 1024))
    }

    const LLAMA: Heads = Heads { kv_heads: 8, group: 4, head_dim: 128 };

    #[test]
    fn llamas_layers_fill_the_chip_and_share_as_the_five_kernels_do() {
        for (chip, blocks, shared, shares, units) in [
            (Chip::A100, 216, 70_912, [96, 96, 672, 96], 13),
            (Chip::H200, 224, 103_680, [96, 128, 224, 128], 12),
        ] {
            for rows in 1..=MAX_ROWS {
                let plan = plan(&chip, rows, LLAMA, [4096, 14336]).unwrap();
                let launch = plan.launch;
                assert_eq!((launch.grid, launch.block), ([blocks, 1, 1], 128), "{launch}");
                assert_eq!(launch.shared_bytes, shared);
                let blocks = plan.products.all().map(|of| of.launch.grid[0]);
                assert_eq!(blocks, shares);
                assert!(launch.cooperative && !launch.overlaps);
                assert_eq!(plan.o_units, units);
                assert_eq!(plan.barriers(&(0..32)), 159);
            }
            assert_eq!(plan(&chip, MAX_ROWS + 1, LLAMA, [4096, 14336]), None);
        }
    }

    #[test]
    fn small_models_get_a_small_grid_and_wide_groups_fill_the_chip() {
        let heads = Heads { kv_heads: 1, group: 4, head_dim: 64 };
        let small = plan(&Chip::H200, 1, heads, [64, 96]).unwrap();
        assert!(small.launch.grid[0] <= 16, "{}", small.launch);
        assert!(small.o_units <= 4);
        let wide = Heads { kv_heads: 8, group: 16, head_dim: 128 };
        let wide = plan(&Chip::H200, 1, wide, [4096, 14336]).unwrap();
        assert_eq!(wide.launch.grid, [224, 1, 1], "{}", wide.launch);
    }

    #[test]
    fn a_chip_without_room_has_no_plan() {
        let chip = Chip { shared_per_block: 62 * 1024, ..Chip::A100 };
        assert_eq!(plan(&chip, 1, LLAMA, [4096, 14336]), None);
    }
}
