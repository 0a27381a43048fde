//! Clusters of blocks: every planted bug of ptx/clusters.cu is found, and its clean variant passes.

use crate::common::Gpu;
use crate::common::planted::{Case, check};
use cudarc::driver::sys::CUresult;

const MODULE: &str = include_str!("ptx/clusters.ptx");
const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
const FAILED: CUresult = CUresult::CUDA_ERROR_LAUNCH_FAILED;

fn case(name: &'static str) -> Case {
    Case { module: MODULE, name, blocks: 2, threads: 64, shared: 1024, n: 0, on_hopper: true }
}

#[test]
fn a_mask_that_leaves_a_block_out_is_a_hang() {
    check(case("mask"), CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, &["no progress"]);
}

#[test]
fn a_copy_over_what_another_block_still_reads_is_found() {
    // Or over the copy before, whose bytes have not arrived there.
    check(case("freed"), ILLEGAL, &["shared address 0x"]);
}

#[test]
fn an_arrival_at_a_block_that_has_ended_is_found() {
    check(case("ended"), ILLEGAL, &["access to a block that has ended", "block 1 of the cluster"]);
}

#[test]
fn an_arrival_at_a_barrier_that_its_block_may_not_have_made_is_found() {
    // It was not written yet, or without order.
    check(case("started"), ILLEGAL, &["shared address 0x"]);
}

#[test]
fn a_block_that_ends_before_another_ones_copy_to_it_is_found() {
    // The copy comes before or after its end.
    check(case("landed"), ILLEGAL, &["block"]);
}

#[test]
fn a_relaxed_arrival_orders_no_global_memory() {
    check(case("exchange"), ILLEGAL, &["global-memory race"]);
}

#[test]
fn two_arrivals_at_the_clusters_barrier_without_a_wait_are_found() {
    check(case("twice"), FAILED, &["barrier divergence", "has arrived before"]);
}

#[test]
fn a_wait_at_the_clusters_barrier_without_an_arrival_is_found() {
    check(case("unarrived"), FAILED, &["barrier divergence", "has not arrived"]);
}

#[test]
fn a_block_outside_of_the_cluster_is_found() {
    check(case("outside"), ILLEGAL, &["out-of-bounds access", "block 2 of a cluster of 2 blocks"]);
}

/// Both blocks of a cluster get what each has loaded a half of.
#[test]
fn multicast_brings_every_half_to_every_block() {
    let session = trail_cuda_emulator::session();
    session.emulator().iter().for_each(|emulator| emulator.hopper());
    let gpu = Gpu::new();
    let module = gpu.load(MODULE).unwrap();
    let (blocks, threads) = (6, 64);
    let input: Vec<f32> = (0..2 * threads).map(|i| i as f32).collect();
    let (from, to) = (gpu.upload(&input), gpu.upload(&vec![0f32; blocks * threads]));
    let arguments = vec![to.into(), from.into(), 0i32.into()];
    module.launch("mask_ok", blocks as u32, threads as u32, 1024, arguments).unwrap();
    let got: Vec<f32> = gpu.download(to, blocks * threads).unwrap();
    for (at, got) in got.iter().enumerate() {
        // Four rounds.
        let thread = at % threads;
        assert_eq!(*got, 4.0 * (input[thread] + input[threads + thread]), "{at}");
    }
    [from, to].into_iter().for_each(|at| gpu.free(at));
}

/// Clusters of 2 x 2 blocks in a grid of 4 x 2.
#[test]
fn special_registers_say_where_a_block_is_in_its_cluster() {
    let session = trail_cuda_emulator::session();
    session.emulator().iter().for_each(|emulator| emulator.hopper());
    let gpu = Gpu::new();
    let module = gpu.load(MODULE).unwrap();
    let (across, down) = (4, 2);
    let to = gpu.upload(&[0f32; 4 * 2 * 10]);
    let arguments = || vec![to.into(), 0u64.into(), 0i32.into()];
    let launch = |grid| module.launch_grid("registers", grid, 64, 0, arguments());
    launch([across, down, 1]).unwrap();
    let got: Vec<f32> = gpu.download(to, 80).unwrap();
    for (block, got) in got.chunks(10).enumerate() {
        let (x, y) = (block as u32 % across, block as u32 / across);
        let (inside_x, inside_y) = (x % 2, y % 2);
        let rank = inside_x + 2 * inside_y;
        let expected = [x / 2, y / 2, 2, 1, inside_x, inside_y, 2, 2, rank, 4];
        assert_eq!(got, expected.map(|value| value as f32), "block {x}, {y}");
    }
    // A grid that clusters do not fill is refused.
    for grid in [[3, 2, 1], [4, 1, 1]] {
        let error = launch(grid).unwrap_err();
        assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_VALUE, "{grid:?}");
    }
    gpu.free(to);
}
