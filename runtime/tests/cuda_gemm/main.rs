//! Proof of the matrix kernels: each against its naive twin, over random shapes, on whatever driver there is.

#[path = "../support/cuda.rs"]
mod cuda;
mod ends;
mod product;
mod shuffle;
mod twins;

use cuda::Chance;
use product::{Case, Family};
use trail_runtime::cuda::plan::gemm::End;
use trail_runtime::cuda::plan::gemm::ladder::Rung;

trail_cuda_emulator::on_emulator!();

const ENDS: [End; 4] = [End::Qkv, End::Residual, End::Swiglu, End::Logits];

/// Few rows: every token tile, edges of tiles, widths that fill no unit, shares from one multiprocessor to many.
#[test]
fn skinny_products_are_their_twins() {
    let mut chance = Chance(1);
    let bench = cuda::Bench::new();
    for end in ENDS {
        for rows in [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64] {
            for _ in 0..2 {
                let case = Case::random(&mut chance, end, rows);
                ends::check(&bench, &mut chance, &case);
            }
        }
    }
}

/// Many rows: both tiles, and edges of them.
#[test]
fn tiled_products_are_their_twins() {
    let mut chance = Chance(2);
    let bench = cuda::Bench::new();
    for end in ENDS {
        for rows in [65, 127, 128, 129, 200, 255, 256, 257, 300, 520] {
            let case = Case::random(&mut chance, end, rows);
            ends::check(&bench, &mut chance, &case);
        }
    }
}

/// Llama's head width, groups of any size, positions to the end of a long context.
#[test]
fn rotation_is_exact_at_distant_positions() {
    let mut chance = Chance(3);
    let bench = cuda::Bench::new();
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
        ends::check(&bench, &mut chance, &case);
    }
}

/// Every end with far more blocks than tiles, and with one block for all; long sums.
#[test]
fn shares_do_not_change_the_result() {
    let mut chance = Chance(4);
    let bench = cuda::Bench::new();
    for multiprocessors in [1, 2, 3, 5, 17, 40] {
        for (end, rows) in [
            (End::Residual, 7),
            (End::Logits, 40),
            (End::Swiglu, 20),
            (End::Residual, 100),
            (End::Logits, 10),
            (End::Swiglu, 256),
        ] {
            let case = Case { multiprocessors, ..Case::new(end, rows, 384, 1536) };
            ends::check(&bench, &mut chance, &case);
        }
    }
}

/// The demo model's products and a Llama's, by whatever kernels the device's own plan takes.
#[test]
fn the_models_own_shapes() {
    let mut chance = Chance(5);
    let bench = cuda::Bench::new();
    let multiprocessors = bench.device.chip().multiprocessors;
    let on_chip = |case| Case { multiprocessors, ..case };
    for rows in [1, 6, 24, 80, 257] {
        let qkv = Case { width: 256, positions: 1024, ..Case::heads(rows, 64, 4, 2) };
        let cases = [
            qkv,
            Case::new(End::Residual, rows, 256, 256),
            Case::new(End::Swiglu, rows, 1280, 256),
            Case::new(End::Residual, rows, 256, 640),
            Case::new(End::Logits, rows, 1024, 256),
        ];
        for case in cases {
            ends::check(&bench, &mut chance, &on_chip(case));
        }
    }
    for case in [
        Case { width: 4096, ..Case::heads(3, 128, 2, 1) },
        Case::new(End::Residual, 2, 256, 14336),
        Case::new(End::Swiglu, 33, 512, 4096),
    ] {
        ends::check(&bench, &mut chance, &on_chip(case));
    }
}

/// The rungs that teach compute the same thing.
#[test]
fn every_rung_is_the_same_product() {
    let mut chance = Chance(6);
    let bench = cuda::Bench::new();
    for rung in [Rung::Naive, Rung::Mma, Rung::Ring] {
        for rows in [1, 8, 13] {
            let case = Case {
                family: Family::Ladder(rung),
                ..Case::random(&mut chance, End::Logits, rows)
            };
            ends::check(&bench, &mut chance, &case);
        }
    }
}

/// Hopper's kernels, where there is a Hopper.
#[test]
fn group_products_are_their_twins() {
    let mut chance = Chance(7);
    let bench = cuda::Bench::new();
    let (module, _) = trail_ptx::find("group_qkv").unwrap();
    if !bench.device.runs(module) {
        eprintln!("this device runs no sm_90a code: the group kernels were not tested");
        return;
    }
    for end in [End::Qkv, End::Residual, End::Swiglu] {
        for rows in [65, 255, 256, 300, 1000] {
            let case = Case { family: Family::Group, ..Case::random(&mut chance, end, rows) };
            ends::check(&bench, &mut chance, &case);
        }
    }
}
