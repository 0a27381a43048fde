use super::*;
use crate::cuda::plan::hopper::wgmma;
use crate::model::ModelConfig;

/// A chip with 100 KiB of shared memory a multiprocessor, as an L4 or an RTX 4090.
fn small() -> Chip {
    Chip {
        multiprocessors: 28,
        shared_per_block: 99 * 1024,
        shared_per_multiprocessor: 100 * 1024,
        ..Chip::A100
    }
}

/// Llama-3-8B's products: (epilogue, features, width).
const LLAMA_8B: [(Epilogue, usize, usize); 5] = [
    (Epilogue::Qkv, 6144, 4096),
    (Epilogue::Residual, 4096, 4096),
    (Epilogue::Swiglu, 28672, 4096),
    (Epilogue::Residual, 4096, 14336),
    (Epilogue::Logits, 128_256, 4096),
];

fn plans() -> Vec<(Chip, GemmPlan)> {
    let mut plans = Vec::new();
    for chip in [Chip::A100, Chip::H200, small()] {
        for (epilogue, features, width) in
            LLAMA_8B.into_iter().chain([(Epilogue::Residual, 72, 200)])
        {
            for rows in [1, 7, 8, 9, 16, 33, 64, 65, 128, 129, 200, 256, 300, 2048, 8192] {
                plans.push((chip, gemm(&chip, Product { epilogue, rows, features, width })));
            }
        }
    }
    plans
}

#[test]
fn every_plan_names_a_kernel_that_exists_and_fits() {
    for (chip, plan) in plans() {
        let (_, entry) = trail_ptx::find(plan.launch.kernel).unwrap();
        assert!(plan.launch.shared_bytes <= chip.shared_per_block, "{}", plan.launch);
        for found in entry.resources {
            // Registers are given to warps in pieces of 256, 65536 to a multiprocessor.
            let registers = found.registers.next_multiple_of(8) * plan.launch.block;
            assert!(registers <= 65536, "{}", plan.launch);
        }
        assert!(plan.launch.kernel.starts_with("skinny") == (plan.product.rows <= 64));
        assert!(plan.features.is_multiple_of(128) && plan.width.is_multiple_of(256));
    }
}

#[test]
fn the_residency_that_plans_count_on_is_what_registers_allow() {
    for instance in SKINNY.iter().chain(&SKINNY_HOPPER).chain(&TILED) {
        for kernel in instance.kernels {
            let (_, entry) = trail_ptx::find(kernel).unwrap();
            for found in entry.resources {
                let registers = found.registers.next_multiple_of(8) * instance.threads;
                assert!(registers * instance.blocks <= 65536, "{kernel}: {found:?}");
                assert!(found.shared_bytes <= 128, "{kernel}: {found:?}");
            }
        }
    }
}

/// Every plan of a shape sums in the same order, whatever the rows, the chip of the architecture
/// and the kernel.
#[test]
fn all_plans_of_a_shape_have_one_order() {
    let shapes = ["qwen2.5-0.5b", "qwen3-0.6b", "llama3.2-1b", "llama3-8b"];
    let rows = (1..256).chain((256..2080).step_by(32)).chain((2080..8192).step_by(480));
    let rows: Vec<usize> = rows.collect();
    for config in shapes.map(|name| ModelConfig::named(name).unwrap()) {
        let (d, ff) = (config.hidden_size, config.intermediate_size);
        let shapes = [(config.q_size() + 2 * config.kv_size(), d), (d, d), (2 * ff, d), (d, ff)];
        for (features, width) in shapes {
            for (multiprocessors, chip) in [7, 58, 108, 114, 132, 144]
                .into_iter()
                .flat_map(|count| [Chip::A100, Chip::H200, small()].map(|chip| (count, chip)))
            {
                let chip = Chip { multiprocessors, ..chip };
                let order = Order::of(chip.target, features, width).to_string();
                for &rows in &rows {
                    let product = Product { epilogue: Epilogue::Residual, rows, features, width };
                    let is_hopper = chip.target == Chip::H200.target;
                    let own = is_hopper.then(|| wgmma::candidates(&chip, product));
                    let own = own.into_iter().flatten().map(|of| of.plan);
                    for plan in [gemm(&chip, product)].into_iter().chain(own) {
                        assert_eq!(plan.order.to_string(), order, "{}", plan.launch);
                        check_workspace(&plan);
                    }
                }
            }
        }
    }
}

/// A block has a part, and there is room for the sums of each.
fn check_workspace(plan: &GemmPlan) {
    let name = plan.launch.kernel;
    let tokens: usize = name.rsplit('_').next().unwrap().parse().unwrap();
    let [grid, columns, _] = plan.launch.grid.map(|extent| extent as usize);
    let tiles = plan.features / 128 / columns * plan.product.rows.div_ceil(tokens);
    let pieces = plan.order.pieces;
    let piece_per_block = plan.tile_counters > 0;
    let parts = if piece_per_block { tiles * pieces } else { tiles };
    assert!(grid <= parts && (grid == parts || !name.starts_with("skinny")), "{}", plan.launch);
    assert_eq!(
        plan.launch.splits as usize,
        if piece_per_block { pieces } else { 1 },
        "{}",
        plan.launch
    );
    let sums = match piece_per_block {
        true => tiles * pieces,
        false if pieces > 1 => grid,
        false => 0,
    };
    assert_eq!(plan.partial_floats, sums * columns * tokens * 128, "{}", plan.launch);
    // A fix-up of wgmma's has a counter for each pass of 64 tokens.
    let passes = if name.starts_with("wgmma") { tokens / 64 } else { 1 };
    let counters = if piece_per_block { tiles * columns * passes } else { 0 };
    assert_eq!(plan.tile_counters, counters, "{}", plan.launch);
}

/// A block for each of the pieces, which leave few multiprocessors without one.
#[test]
fn decode_fills_the_chip() {
    for (chip, plan) in plans() {
        let is_small = chip.shared_per_multiprocessor < 160 * 1024;
        if plan.product.rows <= 64 && plan.product.features > 4000 && !is_small {
            let (blocks, multiprocessors) = (plan.launch.grid[0], chip.multiprocessors);
            let rounds = blocks.div_ceil(multiprocessors) * multiprocessors;
            assert!(blocks * 11 >= rounds * 8, "{}", plan.launch);
        }
    }
}

#[test]
fn large_prefill_takes_the_large_tile_and_small_the_small_one() {
    let plan = |rows| {
        gemm(
            &Chip::A100,
            Product { epilogue: Epilogue::Swiglu, rows, features: 28672, width: 4096 },
        )
    };
    assert_eq!(plan(128).launch.kernel, "tiled_swiglu_128");
    assert_eq!(plan(256).launch.kernel, "tiled_swiglu_256");
    assert_eq!(plan(4096).launch.kernel, "tiled_swiglu_256");
    assert_eq!(plan(320).launch.kernel, "tiled_swiglu_128");
}

/// Llama-3-8B's down projection on an A100: of 2560 rows 320 tiles, three waves that blocks have
/// whole; of 128 rows 32, whose pieces have a block each; of 2048 rows 256, for which eight waves
/// of thirds are shorter than three of tiles.
#[test]
fn few_tiles_have_a_block_for_each_piece() {
    let plan = |rows| {
        let epilogue = Epilogue::Residual;
        gemm(&Chip::A100, Product { epilogue, rows, features: 4096, width: 14336 })
    };
    let many = plan(2560);
    assert_eq!(many.launch.kernel, "tiled_residual_256");
    assert_eq!((many.launch.grid[0], many.launch.splits, many.tile_counters), (108, 1, 0));
    assert_eq!(many.partial_floats, 108 * 256 * 128);
    assert_eq!(plan(2048).launch.splits, 3);
    let few = plan(128);
    assert_eq!(few.launch.kernel, "tiled_residual_128");
    assert_eq!((few.launch.grid[0], few.launch.splits, few.tile_counters), (96, 3, 32));
    assert_eq!(few.partial_floats, 96 * 128 * 128);
}

#[test]
fn a_plan_prints_on_one_line() {
    let product = Product { epilogue: Epilogue::Residual, rows: 8, features: 4096, width: 4096 };
    let line = gemm(&Chip::A100, product).launch.to_string();
    assert_eq!(
        line,
        "skinny_residual_8(rows=8 features=4096 width=4096) grid 96x1x1 block 128 shared 45088 B splits 3, 33.948 MB, 0.268 GFLOP"
    );
}

/// Just more rows than the skinny kernels take: the smaller tile wastes less, unless the larger one
/// fills the chip as well.
#[test]
fn few_tokens_take_the_small_tile() {
    for (epilogue, features, width) in LLAMA_8B {
        let plan = gemm(&Chip::H200, Product { epilogue, rows: 100, features, width });
        assert!(plan.launch.kernel.ends_with("_128"), "{}", plan.launch);
    }
    let tiny = Product { epilogue: Epilogue::Qkv, rows: 70, features: 128, width: 64 };
    assert!(gemm(&Chip::A100, tiny).launch.kernel.ends_with("_128"));
}

/// The blocks a multiprocessor that the rings are made for.
#[test]
fn blocks_of_few_rows_share_a_multiprocessor() {
    for (chip, blocks) in [(Chip::A100, 3), (Chip::H200, 2)] {
        for (epilogue, features, width) in LLAMA_8B {
            for instance in skinny_of(&chip) {
                let product = Product { epilogue, rows: instance.tokens, features, width };
                let launch = gemm(&chip, product).launch;
                assert_eq!(launch.kernel, instance.kernels[epilogue as usize]);
                assert_eq!(launch.resident(&chip), blocks, "{launch}");
            }
        }
    }
}
