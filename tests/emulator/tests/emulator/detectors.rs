//! Every detector finds its planted bug, names it, and passes the clean variant. The kernels are in
//! ptx/detectors.cu and, of order between blocks, in ptx/order.cu.

use crate::common::planted::{Case, check, run};
use crate::common::queue::late;
use crate::common::{Gpu, Module};
use cudarc::driver::sys::CUresult;

const DETECTORS: &str = include_str!("ptx/detectors.ptx");
const ORDER: &str = include_str!("ptx/order.ptx");

fn case(name: &'static str) -> Case {
    Case { module: DETECTORS, name, blocks: 1, threads: 128, shared: 0, n: 128, on_hopper: false }
}

const ILLEGAL: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

#[test]
fn global_out_of_bounds() {
    let beyond = Case { threads: 512, n: 256, ..case("bounds") };
    check(
        beyond,
        ILLEGAL,
        &["out-of-bounds access", "ld.global.f32", "bytes past the end of allocation 2"],
    );
}

#[test]
fn global_misaligned() {
    check(
        case("align"),
        CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
        &["misaligned access", "ld.global.v2.f32", "not a multiple of 8"],
    );
}

#[test]
fn shared_out_of_bounds() {
    let words = ["out-of-bounds access", "4 bytes at shared address 0x3", "the block has 768"];
    check(Case { shared: 768, ..case("shared_bounds") }, ILLEGAL, &words);
}

#[test]
fn shared_unwritten() {
    check(
        case("shared_unwritten"),
        ILLEGAL,
        &["read of unwritten memory", "thread (5,0,0)", "shared address 0x14"],
    );
}

#[test]
fn shared_race_read_after_write() {
    check(case("race_read"), ILLEGAL, &["shared-memory race", "shared address", "by warp"]);
}

#[test]
fn shared_race_write_after_read() {
    check(case("race_write"), ILLEGAL, &["shared-memory race", "shared address"]);
}

#[test]
fn shared_race_within_a_warp() {
    check(case("race_warp"), ILLEGAL, &["shared-memory race", "with a write by warp"]);
}

#[test]
fn shared_race_past_a_named_barrier() {
    check(case("race_named"), ILLEGAL, &["shared-memory race", "shared address"]);
}

#[test]
fn shared_race_with_an_atomic() {
    check(case("race_atomic"), ILLEGAL, &["shared-memory race", "shared address"]);
}

#[test]
fn asynchronous_copy_not_waited_for() {
    check(case("async_wait"), ILLEGAL, &["cp.async in flight", "has not been waited for"]);
}

#[test]
fn asynchronous_copy_of_a_later_group() {
    check(case("async_group"), ILLEGAL, &["cp.async in flight", "has not been waited for"]);
}

#[test]
fn asynchronous_copy_without_barrier() {
    let session = trail_cuda_emulator::session();
    for seed in 1..=6 {
        let emulator = session.emulator().unwrap();
        emulator.reset();
        emulator.seed(seed);
        let (code, findings) = run(&session, case("async_barrier"), "bug");
        assert_eq!(code, ILLEGAL);
        // By the order of the warps: not written yet, still in flight, or written without a
        // barrier.
        assert!(findings[0].contains("async_barrier_bug"), "{}", findings[0]);
        emulator.reset();
        assert_eq!(run(&session, case("async_barrier"), "ok").0, CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn barrier_divergence_in_a_warp() {
    check(
        case("divergence"),
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
        &["barrier divergence", "bar.sync", "lanes 16, 17"],
    );
}

#[test]
fn barrier_deadlock_of_warps() {
    check(
        case("deadlock"),
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
        &["barrier divergence", "no barrier can open", "warp 1 at barrier 1"],
    );
}

#[test]
fn shuffle_names_absent_lanes() {
    let half = Case { n: 16, ..case("shuffle") };
    check(
        half,
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
        &["barrier divergence", "shfl.sync", "names lanes 0xffff0000"],
    );
}

#[test]
fn local_out_of_bounds() {
    check(
        Case { n: 4, ..case("local") },
        ILLEGAL,
        &["out-of-bounds access", "local address", "the thread has 32"],
    );
}

#[test]
fn trap() {
    check(case("trap"), CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION, &["trap", "thread (3,0,0)"]);
}

#[test]
fn blocks_write_one_place() {
    check(
        Case { blocks: 4, ..case("blocks_write") },
        ILLEGAL,
        &["global-memory race", "of the same launch"],
    );
}

#[test]
fn blocks_read_without_synchronisation() {
    let session = trail_cuda_emulator::session();
    let case = Case { blocks: 4, ..case("blocks_read") };
    let (code, findings) = run(&session, case, "bug");
    assert_eq!((code, findings[0].contains("global-memory race")), (ILLEGAL, true), "{findings:?}");
    session.emulator().unwrap().reset();
    assert_eq!(run(&session, case, "ok"), (CUresult::CUDA_SUCCESS, Vec::new()));
}

/// Atomics, fences, scopes and flags that do not order what they seem to.
#[test]
fn blocks_without_release_and_acquire() {
    for name in ["order_atomic", "order_fence", "order_scope", "order_flag", "order_reuse"] {
        check(
            Case { module: ORDER, blocks: 4, ..case(name) },
            ILLEGAL,
            &["global-memory race", "with no release and acquire between them"],
        );
    }
}

#[test]
fn a_launch_that_hangs_is_given_up() {
    let session = trail_cuda_emulator::session();
    session.emulator().unwrap().patience(1_000_000);
    let (code, findings) = run(&session, case("hang"), "bug");
    assert_eq!(
        (code, findings[0].contains("no progress")),
        (CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, true),
        "{findings:?}"
    );
    session.emulator().unwrap().reset();
    assert_eq!(run(&session, case("hang"), "ok"), (CUresult::CUDA_SUCCESS, Vec::new()));
}

fn copy(gpu: &Gpu, module: &Module, to: u64, from: u64, n: i32) {
    let _ = gpu;
    module.launch("copy", n as u32 / 128, 128, 0, vec![to.into(), from.into(), n.into()]).unwrap();
}

#[test]
fn global_unwritten() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let module = gpu.load(DETECTORS).unwrap();
    let (from, to) = (gpu.alloc(1024), gpu.alloc(1024));
    // SAFETY: `from` has 1024 bytes.
    unsafe { cudarc::driver::result::memset_d8_sync(from, 0, 1000) }.unwrap();
    copy(&gpu, &module, to, from, 256);
    assert_eq!(gpu.sync_code(), ILLEGAL);
    let findings = session.take_findings();
    assert!(
        findings[0].contains("read of unwritten memory")
            && findings[0].contains("byte 1000 of allocation"),
        "{findings:?}"
    );
    // The error stays: as with a real driver, the context is broken.
    assert_eq!(gpu.sync_code(), ILLEGAL);
    drop((module, gpu));
    let _ = session.take_findings();
    session.emulator().unwrap().reset();

    let gpu = Gpu::new();
    let module = gpu.load(DETECTORS).unwrap();
    let (from, to) = (gpu.alloc(1024), gpu.alloc(1024));
    // SAFETY: `from` has 1024 bytes.
    unsafe { cudarc::driver::result::memset_d8_sync(from, 0, 1024) }.unwrap();
    copy(&gpu, &module, to, from, 256);
    gpu.sync().unwrap();
    gpu.free(from);
    gpu.free(to);
    drop(module);
}

#[test]
fn memory_freed_before_its_kernel_ran() {
    let session = trail_cuda_emulator::session();
    late(&session);
    let gpu = Gpu::new();
    let module = gpu.load(DETECTORS).unwrap();
    let (from, to) = (gpu.upload(&[1f32; 256]), gpu.alloc(1024));
    copy(&gpu, &module, to, from, 256);
    gpu.free(from);
    assert_eq!(gpu.sync_code(), ILLEGAL);
    let findings = session.take_findings();
    assert!(
        findings[0].contains("use after free") && findings[0].contains(", freed)"),
        "{findings:?}"
    );
    drop((module, gpu));
    let _ = session.take_findings();
    session.emulator().unwrap().reset();
    late(&session);

    let gpu = Gpu::new();
    let module = gpu.load(DETECTORS).unwrap();
    let (from, to) = (gpu.upload(&[1f32; 256]), gpu.alloc(1024));
    copy(&gpu, &module, to, from, 256);
    gpu.sync().unwrap();
    gpu.free(from);
    gpu.free(to);
    drop(module);
}

#[test]
fn leaks_are_named() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let (kept, freed) = (gpu.alloc(4096), gpu.alloc(512));
    gpu.free(freed);
    assert_eq!(session.emulator().unwrap().live_allocations(), 1);
    drop(gpu);
    let findings = session.take_findings();
    assert_eq!(findings.len(), 1);
    assert!(
        findings[0].contains("leak") && findings[0].contains(&format!("{kept:#x}, 4096 bytes")),
        "{findings:?}"
    );
}

#[test]
fn the_hosts_faults_are_refused_and_named() {
    let session = trail_cuda_emulator::session();
    let gpu = Gpu::new();
    let at = gpu.alloc(16);
    // SAFETY: a copy past the end, which must be refused.
    let refused = unsafe { cudarc::driver::result::memcpy_htod_sync(at, &[0u8; 32]) };
    assert!(refused.is_err());
    gpu.free(at);
    // SAFETY: freed twice, which must be refused.
    assert!(unsafe { cudarc::driver::result::free_sync(at) }.is_err());
    let findings = session.take_findings();
    assert!(
        findings[0].contains("pass the end") && findings[1].contains("free of"),
        "{findings:?}"
    );
}
