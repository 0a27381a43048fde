//! Hopper's barriers, bulk copies and products: every planted bug of ptx/hopper.cu is found, and
//! its clean variant passes.

mod common;

use common::planted::{Case, check};
use cudarc::driver::sys::CUresult;

trail_cuda_emulator::on_emulator!();

const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

fn case(name: &'static str) -> Case {
    let module = include_str!("ptx/hopper.ptx");
    // Rows of 128 bytes, and a barrier behind them.
    let shared = 256 * 128 + 1024;
    Case { module, name, blocks: 1, threads: 128, shared, n: 0, on_hopper: true }
}

#[test]
fn a_wait_for_the_wrong_phase_is_found() {
    // The copy is not issued, in flight, or has arrived without order.
    check(case("phase"), ILLEGAL, &["shared address 0x", "ld.shared.f32"]);
}

#[test]
fn a_barrier_that_expects_more_bytes_than_are_copied_is_a_hang() {
    let code = CUresult::CUDA_ERROR_LAUNCH_TIMEOUT;
    check(case("expect"), code, &["no progress"]);
}

#[test]
fn a_barrier_that_the_copy_engine_has_not_seen_is_found() {
    check(case("shown"), ILLEGAL, &["missing proxy fence", "fence.mbarrier_init"]);
}

#[test]
fn more_arrivals_than_a_barrier_waits_for_are_found() {
    check(case("arrivals"), ILLEGAL, &["mbarrier misuse", "all its 127 arrivals are there"]);
}

#[test]
fn ordinary_writes_that_a_product_reads_without_a_proxy_fence_are_found() {
    check(case("proxy"), ILLEGAL, &["missing proxy fence", "without a fence.proxy.async"]);
}

#[test]
fn a_product_without_its_fence_is_found() {
    check(case("fence"), ILLEGAL, &["missing wgmma fence or wait", "no wgmma.fence"]);
}

#[test]
fn a_product_that_is_not_waited_for_is_found() {
    check(case("waited"), ILLEGAL, &["missing wgmma fence or wait", "has not waited for"]);
}

#[test]
fn rows_that_change_under_a_product_are_found() {
    check(case("overwritten"), ILLEGAL, &["shared address 0x"]);
}

#[test]
fn rows_that_change_in_order_under_a_product_are_found() {
    check(case("ordered"), ILLEGAL, &["shared address 0x", "write under a product"]);
}

/// The clean variant reads the first product while the second is pending.
#[test]
fn the_second_of_two_products_is_waited_for() {
    check(case("two"), ILLEGAL, &["missing wgmma fence or wait", "has not waited for"]);
}
