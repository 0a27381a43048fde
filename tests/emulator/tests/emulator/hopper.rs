//! Hopper's barriers, bulk copies and products: every planted bug of ptx/hopper.cu is found, and
//! its clean variant passes.

use crate::common::Gpu;
use crate::common::planted::{Case, check};
use cudarc::driver::sys::CUresult;
use half::bf16;

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

#[test]
fn a_register_that_changes_under_a_product_is_found() {
    check(case("operand"), ILLEGAL, &["missing wgmma fence or wait", "first operand changed"]);
}

/// The clean variant reads the first product while the second is pending.
#[test]
fn the_second_of_two_products_is_waited_for() {
    check(case("two"), ILLEGAL, &["missing wgmma fence or wait", "has not waited for"]);
}

/// Against plain loops: small integers, so that every sum is exact.
#[test]
fn a_product_with_a_transposed_operand_is_its_definition() {
    let session = trail_cuda_emulator::session();
    session.emulator().iter().for_each(|emulator| emulator.hopper());
    let (gpu, rows, depth, columns) = (Gpu::new(), 64, 16, 128);
    let module = gpu.load(include_str!("ptx/hopper.ptx")).unwrap();
    let value = |i: usize| (i * 37 % 101) as f32 - 50.0;
    let input: Vec<bf16> =
        (0..(rows + columns) * depth).map(|i| bf16::from_f32(value(i))).collect();
    let (from, to) = (gpu.upload(&input), gpu.upload(&vec![0f32; rows * columns]));
    let shared = 256 * 128 + 1024;
    let arguments = vec![to.into(), from.into(), 0i32.into()];
    module.launch("transposed", 1, 128, shared, arguments).unwrap();
    let got: Vec<f32> = gpu.download(to, rows * columns).unwrap();
    let (a, b) = input.split_at(rows * depth);
    for (at, got) in got.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let product = |k: usize| a[row * depth + k].to_f32() * b[k * columns + column].to_f32();
        let wanted = 2.0 * (0..depth).map(product).sum::<f32>();
        assert_eq!(*got, wanted, "row {row}, column {column}");
    }
    [from, to].into_iter().for_each(|at| gpu.free(at));
}
