//! Proof of the matrix kernels: each against its naive expected, over random shapes, on whatever
//! driver there is.

mod epilogues;
mod order;
mod product;
mod shuffle;

use product::{Case, Family};
use std::collections::BTreeSet;
use trail_runtime::cuda::params::{LogitsParams, SwigluParams};
use trail_runtime::cuda::plan::bench::ladder::Rung;
use trail_runtime::cuda::plan::gemm::{Epilogue, Product};
use trail_runtime::cuda::{launch, plan};
use trail_test_support::cuda;
use trail_test_support::cuda::Chance;

const ENDS: [Epilogue; 4] = [Epilogue::Qkv, Epilogue::Residual, Epilogue::Swiglu, Epilogue::Logits];

/// All compiled kernels whose names begin with `prefix`.
fn kernels(prefix: &str) -> BTreeSet<&'static str> {
    let entries = trail_ptx::MODULES.iter().flat_map(|module| module.entries);
    entries.map(|entry| entry.name).filter(|name| name.starts_with(prefix)).collect()
}

/// Few rows: every token tile, edges of tiles, widths that fill no unit, shares from one
/// multiprocessor to many.
#[test]
fn skinny_products_are_their_references() {
    let mut chance = Chance(1);
    let bench = cuda::Bench::open();
    let mut checked = BTreeSet::new();
    for end in ENDS {
        for rows in [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64] {
            for _ in 0..2 {
                let case = Case::random(&mut chance, end, rows);
                checked.insert(epilogues::check(&bench, &mut chance, &case));
            }
        }
    }
    assert_eq!(checked, kernels("skinny_"));
}

/// Many rows: both tiles, and their edges.
#[test]
fn tiled_products_are_their_references() {
    let mut chance = Chance(2);
    let bench = cuda::Bench::open();
    let mut checked = BTreeSet::new();
    for end in ENDS {
        for rows in [65, 127, 128, 129, 200, 255, 256, 257, 300, 520] {
            let case = Case::random(&mut chance, end, rows);
            checked.insert(epilogues::check(&bench, &mut chance, &case));
        }
    }
    assert_eq!(checked, kernels("tiled_"));
}

/// Llama's head width, groups of any size, positions to the end of a long context.
#[test]
fn rotation_is_exact_at_distant_positions() {
    let mut chance = Chance(3);
    let bench = cuda::Bench::open();
    let shapes = [
        (5, 128, 3, 1),
        (13, 64, 7, 1),
        (70, 128, 2, 2),
        (3, 16, 5, 5),
        (130, 64, 4, 2),
        (40, 32, 6, 3),
    ];
    for (rows, head_dim, heads, kv_heads) in shapes {
        let case = Case { positions: 131_072, ..Case::heads(rows, head_dim, heads, kv_heads) };
        epilogues::check(&bench, &mut chance, &case);
    }
}

/// Every end with far more places than parts, and with one for all; long sums of several pieces.
#[test]
fn grids_do_not_change_the_result() {
    let mut chance = Chance(4);
    let bench = cuda::Bench::open();
    for multiprocessors in [1, 2, 3, 5, 17, 40] {
        for (epilogue, rows) in [
            (Epilogue::Residual, 7),
            (Epilogue::Logits, 40),
            (Epilogue::Swiglu, 20),
            (Epilogue::Residual, 100),
            (Epilogue::Logits, 10),
            (Epilogue::Swiglu, 256),
        ] {
            let case = Case { multiprocessors, ..Case::new(epilogue, rows, 384, 1536) };
            epilogues::check(&bench, &mut chance, &case);
        }
    }
}

/// The demo model's products and a Llama's, by whatever kernels the device's own plan takes.
#[test]
fn the_models_own_shapes() {
    let mut chance = Chance(5);
    let bench = cuda::Bench::open();
    let multiprocessors = bench.device.chip().multiprocessors;
    let on_chip = |case| Case { multiprocessors, ..case };
    for rows in [1, 6, 24, 80, 257] {
        let qkv = Case { width: 256, positions: 1024, ..Case::heads(rows, 64, 4, 2) };
        let cases = [
            qkv,
            Case::new(Epilogue::Residual, rows, 256, 256),
            Case::new(Epilogue::Swiglu, rows, 1280, 256),
            Case::new(Epilogue::Residual, rows, 256, 640),
            Case::new(Epilogue::Logits, rows, 1024, 256),
        ];
        for case in cases {
            epilogues::check(&bench, &mut chance, &on_chip(case));
        }
    }
    for case in [
        Case { width: 4096, ..Case::heads(3, 128, 2, 1) },
        Case::new(Epilogue::Residual, 2, 256, 14336),
        Case::new(Epilogue::Swiglu, 33, 512, 4096),
    ] {
        epilogues::check(&bench, &mut chance, &on_chip(case));
    }
}

/// The rungs that teach compute the same thing.
#[test]
fn every_rung_is_the_same_product() {
    let mut chance = Chance(6);
    let bench = cuda::Bench::open();
    let mut checked = BTreeSet::new();
    for rung in [Rung::Naive, Rung::Mma, Rung::Ring] {
        for rows in [1, 8, 13] {
            let case = Case {
                family: Family::Ladder(rung),
                ..Case::random(&mut chance, Epilogue::Logits, rows)
            };
            checked.insert(epilogues::check(&bench, &mut chance, &case));
        }
    }
    assert_eq!(checked, kernels("gemm_"));
}

/// Hopper's kernels of many rows, on the emulator's Hopper or a real one.
#[test]
fn wgmma_products_are_their_references() {
    let mut chance = Chance(7);
    let Some(bench) = cuda::Bench::hopper() else { return };
    let mut checked = BTreeSet::new();
    for end in [Epilogue::Qkv, Epilogue::Residual, Epilogue::Swiglu] {
        for (at, rows) in [65, 66, 127, 128, 129, 255, 256, 257, 300, 1000].into_iter().enumerate()
        {
            let family = Family::Group { piece_per_block: at % 2 > 0 };
            let case = Case { family, ..Case::random(&mut chance, end, rows) };
            checked.insert(epilogues::check(&bench, &mut chance, &case));
        }
    }
    let mut all = kernels("wgmma_");
    all.retain(|kernel| !kernel.contains("_cluster_"));
    assert_eq!(checked, all);
}

/// Tiles of several pieces: a block for each, and for all.
#[test]
fn wgmma_adds_up_pieces() {
    let mut chance = Chance(8);
    let Some(bench) = cuda::Bench::hopper() else { return };
    for end in [Epilogue::Qkv, Epilogue::Residual, Epilogue::Swiglu] {
        for (rows, multiprocessors) in [(70, 3), (100, 3), (128, 7), (200, 3), (256, 7)] {
            let base = match end {
                Epilogue::Qkv => Case::heads(rows, 128, 3, 1),
                _ => Case::new(end, rows, 640, 0),
            };
            for piece_per_block in [true, false] {
                let family = Family::Group { piece_per_block };
                let case = Case { family, width: 2048, multiprocessors, ..base };
                check_pieces(&bench, &mut chance, &case, piece_per_block);
            }
        }
    }
}

/// Checks `case`, whose tiles have several pieces, with a block for each or for all.
fn check_pieces(bench: &cuda::Bench, chance: &mut Chance, case: &Case, piece_per_block: bool) {
    let plan = case.plan(bench);
    assert!(
        plan.order.pieces > 1 && (plan.launch.splits > 1) == piece_per_block,
        "{}",
        plan.launch
    );
    epilogues::check(bench, chance, case);
}

/// In clusters: the edges of tiles, of all tiles whole, and the bits of the same plan without.
#[test]
fn wgmma_clusters_are_their_references() {
    let mut chance = Chance(9);
    let Some(bench) = cuda::Bench::hopper() else { return };
    let mut checked = BTreeSet::new();
    for end in [Epilogue::Qkv, Epilogue::Residual, Epilogue::Swiglu] {
        for (rows, multiprocessors, width) in [(129, 2, 264), (256, 4, 640), (300, 5, 1000)] {
            let base = match end {
                Epilogue::Qkv => Case::heads(rows, 64, 6, 1),
                _ => Case::new(end, rows, 504, 0),
            };
            let family = Family::Clusters { piece_per_block: false };
            let case = Case { family, multiprocessors, width, ..base };
            checked.insert(epilogues::check(&bench, &mut chance, &case));
        }
    }
    let mut all = kernels("wgmma_");
    all.retain(|kernel| kernel.contains("_cluster_"));
    assert_eq!(checked, all);
}

/// Pairs of tiles of several pieces: a cluster for each, and for all; an odd number of
/// multiprocessors.
#[test]
fn wgmma_clusters_add_up_pieces() {
    let mut chance = Chance(10);
    let Some(bench) = cuda::Bench::hopper() else { return };
    for end in [Epilogue::Qkv, Epilogue::Residual, Epilogue::Swiglu] {
        for (rows, multiprocessors) in [(200, 5), (256, 8)] {
            let base = match end {
                Epilogue::Qkv => Case::heads(rows, 128, 4, 1),
                _ => Case::new(end, rows, 768, 0),
            };
            for piece_per_block in [true, false] {
                let family = Family::Clusters { piece_per_block };
                let case = Case { family, width: 2048, multiprocessors, ..base };
                check_pieces(&bench, &mut chance, &case, piece_per_block);
            }
        }
    }
}

/// Every module that is for this device loads, by its cubin or by its text.
#[test]
fn all_modules_load() {
    let bench = cuda::Bench::open();
    bench.device.load_all().unwrap();
}

/// An error says which kernel, on which shapes, and the driver's code.
#[test]
fn errors_name_kernel_shapes_and_code() {
    let bench = cuda::Bench::open();
    let product = Product { epilogue: Epilogue::Logits, rows: 3, features: 128, width: 256 };
    let plan = plan::gemm::gemm(bench.device.chip(), product);
    let (device, stream) = (&bench.device, &bench.stream);

    let impossible = plan::LaunchPlan { block: 2048, ..plan.launch };
    let refused = plan::gemm::GemmPlan { launch: impossible, ..plan };
    // SAFETY: no device takes blocks of 2048 threads: nothing runs.
    let error =
        unsafe { device.launch(stream, &launch::logits(&refused, LogitsParams::default())) };
    let text = error.unwrap_err().to_string();
    assert!(text.contains("skinny_logits_8(rows=3 features=128 width=256)"), "{text}");
    assert!(text.contains("CUDA_ERROR_INVALID_VALUE (1)"), "{text}");

    // SAFETY: the struct is not the kernel's: nothing runs.
    let error = unsafe { device.launch(stream, &launch::swiglu(&plan, SwigluParams::default())) };
    let text = error.unwrap_err().to_string();
    assert!(text.ends_with("takes LogitsParams, was given SwigluParams"), "{text}");
}
