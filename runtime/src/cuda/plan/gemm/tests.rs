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
        // The rings of 64 rows need the shared memory of an A100.
        let skinny_rows = if chip.shared_per_block < 160 * 1024 { 32 } else { 64 };
        assert!(plan.launch.kernel.starts_with("skinny") == (plan.product.rows <= skinny_rows));
        assert!(plan.features.is_multiple_of(128) && plan.width.is_multiple_of(256));
    }
}

#[test]
fn the_residency_that_plans_count_on_is_what_registers_allow() {
    for instance in SKINNY.iter().chain(&TILED) {
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

/// Walks the units as the kernels do: every one is done once, and the shares of the line differ by
/// one unit at most.
#[test]
fn shares_are_equal_and_cover_everything() {
    for (_, plan) in plans() {
        let mut instances = SKINNY.iter().chain(&TILED);
        let instance = instances.find(|it| it.kernels.contains(&plan.launch.kernel)).unwrap();
        let tiles = plan.features / 128 * plan.product.rows.div_ceil(instance.tokens);
        let depth = plan.width / instance.depth;
        let grid = plan.launch.grid[0] as usize;
        // Many rows: the tiles of whole waves have one block each.
        let is_line = plan.launch.kernel.starts_with("skinny");
        let shared_tiles = if is_line { tiles } else { tiles % grid };
        if shared_tiles == 0 {
            assert_eq!((plan.launch.splits, plan.partial_floats, plan.tile_counters), (1, 0, 0));
            continue;
        }
        let units = shared_tiles * depth;
        let first = |block: usize| units * block / grid;
        let shares: Vec<usize> = (0..grid).map(|block| first(block + 1) - first(block)).collect();
        assert_eq!(shares.iter().sum::<usize>(), units);
        assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        assert!(*shares.iter().min().unwrap() > 0, "{}", plan.launch);
        for unit in (0..units).step_by(units / 97 + 1) {
            let owner = ((unit + 1) * grid - 1) / units;
            assert!((first(owner)..first(owner + 1)).contains(&unit), "{unit} of {}", plan.launch);
        }
        if plan.launch.splits == 1 {
            assert!(shares.iter().all(|share| share.is_multiple_of(depth)), "{}", plan.launch);
        } else {
            assert!(plan.partial_floats >= 2 * grid * instance.tokens * 128);
            assert_eq!(plan.tile_counters, shared_tiles);
        }
    }
}

/// The fix-up waits for every block between a tile's first and last, so each has a unit: of all
/// products of some models, at all numbers of rows, on all sizes of chips.
#[test]
fn no_block_of_a_line_is_without_a_unit() {
    let shapes = ["qwen2.5-0.5b", "qwen3-0.6b", "llama3.2-1b", "llama3-8b"];
    let rows = (1..256).chain((256..2080).step_by(32)).chain((2080..8192).step_by(480));
    let rows: Vec<usize> = rows.collect();
    for config in shapes.map(|name| ModelConfig::named(name).unwrap()) {
        let (d, ff) = (config.hidden_size, config.intermediate_size);
        let shapes = [(config.q_size() + 2 * config.kv_size(), d), (d, d), (2 * ff, d), (d, ff)];
        for multiprocessors in [7, 58, 66, 78, 82, 108, 114, 132, 144] {
            for &rows in &rows {
                for (features, width) in shapes {
                    let product = Product { epilogue: Epilogue::Residual, rows, features, width };
                    for chip in [Chip::A100, Chip::H200, small()] {
                        check_line(&gemm(&Chip { multiprocessors, ..chip }, product));
                    }
                    let hopper = Chip { multiprocessors, ..Chip::H200 };
                    wgmma::candidates(&hopper, product).iter().for_each(|of| check_line(&of.plan));
                }
            }
        }
    }
}

fn check_line(plan: &GemmPlan) {
    let name = plan.launch.kernel;
    let (tokens, depth, is_line) = match name.strip_prefix("wgmma_residual_") {
        Some(tokens) => (tokens.parse().unwrap(), 2 * wgmma::DEPTH, false),
        None => {
            let mut instances = SKINNY.iter().chain(&TILED);
            let instance = instances.find(|it| it.kernels.contains(&name)).unwrap();
            (instance.tokens, instance.depth, name.starts_with("skinny"))
        }
    };
    let tiles = plan.features / 128 * plan.product.rows.div_ceil(tokens);
    let grid = plan.launch.grid[0] as usize;
    let is_whole = plan.partial_floats == 0 && name.starts_with("wgmma");
    let shared = if is_line { tiles } else { tiles % grid };
    let units = shared * (plan.width / depth);
    assert!(is_whole || units == 0 || units >= grid, "{}: {units} units", plan.launch);
}

#[test]
fn decode_fills_the_chip_in_one_wave() {
    for (chip, plan) in plans() {
        if plan.launch.kernel.starts_with("skinny") && plan.product.features > 4000 {
            let is_small = chip.shared_per_multiprocessor < 160 * 1024;
            let per_multiprocessor = if plan.product.rows > 32 || is_small { 1 } else { 2 };
            let places = chip.multiprocessors * per_multiprocessor;
            assert!(plan.launch.grid[0] <= places, "{}", plan.launch);
            assert!(plan.launch.grid[0] * 100 >= places * 97, "{}", plan.launch);
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

/// Llama-3-8B's down projection of 2048 rows on an A100: 256 tiles for 108 multiprocessors are two
/// waves whole, and the 40 of the third shared, so that blocks that run at one time share weights
/// and activations in L2.
#[test]
fn only_the_last_wave_is_shared() {
    let product =
        Product { epilogue: Epilogue::Residual, rows: 2048, features: 4096, width: 14336 };
    let plan = gemm(&Chip::A100, product);
    assert_eq!(plan.launch.kernel, "tiled_residual_256");
    assert_eq!((plan.launch.grid[0], plan.tile_counters), (108, 40));
    assert!(plan.launch.splits > 1 && plan.launch.splits <= 4, "{}", plan.launch);
}

#[test]
fn a_plan_prints_on_one_line() {
    let product = Product { epilogue: Epilogue::Residual, rows: 8, features: 4096, width: 4096 };
    let line = gemm(&Chip::A100, product).launch.to_string();
    assert_eq!(
        line,
        "skinny_residual_8(rows=8 features=4096 width=4096) grid 216x1x1 block 256 shared 61600 B splits 8, 33.948 MB, 0.268 GFLOP"
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

/// As many as the grid's shares, so that none has a neighbour more than another.
#[test]
fn no_multiprocessor_holds_more_blocks_of_few_rows_than_the_grid_counts_on() {
    for chip in [Chip::A100, Chip::H200] {
        for (epilogue, features, width) in LLAMA_8B {
            for instance in &SKINNY {
                let product = Product { epilogue, rows: instance.tokens, features, width };
                let launch = gemm(&chip, product).launch;
                assert_eq!(launch.kernel, instance.kernels[epilogue as usize]);
                assert_eq!(launch.resident(&chip), instance.blocks, "{launch}");
            }
        }
    }
}
