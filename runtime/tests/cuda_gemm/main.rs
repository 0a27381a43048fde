//! Proof of the matrix kernels: each against its naive twin, over random shapes, on whatever driver there is.

#[path = "../support/cuda.rs"]
mod cuda;
mod ends;
mod product;
mod shuffle;
mod twins;

use cuda::Chance;
use product::Case;
use trail_runtime::cuda::plan::gemm::End;

trail_cuda_emulator::on_emulator!();

const ENDS: [End; 4] = [End::Qkv, End::Residual, End::Swiglu, End::Logits];

/// Few rows: every token tile, edges of tiles, widths that fill no unit, shares from one multiprocessor to many.
#[test]
fn skinny_products_are_their_twins() {
    let mut chance = Chance(1);
    let bench = cuda::Bench::new();
    for end in ENDS {
        for rows in [1, 2, 8, 9, 16, 17, 31, 32, 33, 64] {
            let case = Case::random(&mut chance, end, rows);
            ends::check(&bench, &mut chance, &case);
        }
    }
}

/// Many rows: both tiles, and edges of them.
#[test]
fn tiled_products_are_their_twins() {
    let mut chance = Chance(2);
    let bench = cuda::Bench::new();
    for end in ENDS {
        for rows in [65, 128, 129, 200, 256, 300] {
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
    for (rows, head_dim, heads, kv_heads) in
        [(5, 128, 3, 1), (13, 64, 7, 1), (70, 128, 2, 2), (3, 16, 5, 5)]
    {
        let case = Case { positions: 131_072, ..Case::heads(rows, head_dim, heads, kv_heads) };
        ends::check(&bench, &mut chance, &case);
    }
}

/// One case of each kernel with far more blocks than tiles, and with one block for all.
#[test]
fn shares_do_not_change_the_result() {
    let mut chance = Chance(4);
    let bench = cuda::Bench::new();
    for multiprocessors in [1, 3, 40] {
        for rows in [7, 40, 100] {
            let case = Case { multiprocessors, ..Case::new(End::Residual, rows, 384, 1024) };
            ends::check(&bench, &mut chance, &case);
        }
    }
}
