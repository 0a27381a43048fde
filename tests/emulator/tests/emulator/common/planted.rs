//! Planted bugs: each runs beside its clean variant, in any order of warps and copies.

use super::Gpu;
use cudarc::driver::sys::CUresult;
use trail_cuda_emulator::{Order, Session};

/// How a pair is launched.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    pub(crate) n: i32,
    /// Runs on an H100.
    pub(crate) on_hopper: bool,
}

/// Runs `NAME_which` on a fresh context; the error of the synchronisation and what was found.
pub(crate) fn run(session: &Session, case: Case, which: &str) -> (CUresult, Vec<String>) {
    let gpu = Gpu::new();
    let module = gpu.load(case.module).unwrap();
    let input: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let input = gpu.upload(&input);
    let output = gpu.upload(&[0f32; 1024]);
    let name = format!("{}_{which}", case.name);
    module
        .launch(
            &name,
            case.blocks,
            case.threads,
            case.shared,
            vec![output.into(), input.into(), case.n.into()],
        )
        .unwrap();
    let code = gpu.sync_code();
    if code == CUresult::CUDA_SUCCESS {
        gpu.free(input);
        gpu.free(output);
    }
    drop(module);
    drop(gpu);
    // Allocations of a broken context are a leak, reported with the other findings.
    let findings = session
        .take_findings()
        .into_iter()
        .filter(|finding| !finding.starts_with("leak"))
        .collect();
    (code, findings)
}

fn choose_chip(session: &Session, case: Case) {
    let Some(emulator) = session.emulator().filter(|_| case.on_hopper) else { return };
    emulator.hopper();
    // Some wait for what never comes.
    emulator.patience(20_000_000);
}

/// Checks that the bug ends in `code` with a finding that contains all of `words`, and the clean
/// variant in success without findings.
pub(crate) fn check(case: Case, code: CUresult, words: &[&str]) {
    let session = trail_cuda_emulator::session();
    // Whatever the order of warps and the arrival of copies: it is found.
    for seed in 1..=6 {
        let emulator = session.emulator().unwrap();
        emulator.reset();
        emulator.seed(seed);
        emulator.order([Order::Late, Order::Early, Order::Seeded][seed as usize % 3]);
        choose_chip(&session, case);
        let (got, findings) = run(&session, case, "bug");
        assert_eq!(got, code, "{} {findings:?}", case.name);
        let first = findings.first().expect("a finding");
        let kernel = format!("kernel {}_bug", case.name);
        for word in
            words.iter().copied().chain([kernel.as_str(), "PTX line", "block (", "thread ("])
        {
            assert!(first.contains(word), "`{word}` is not in: {first}");
        }
        emulator.reset();
        emulator.seed(seed);
        choose_chip(&session, case);
        let (got, findings) = run(&session, case, "ok");
        assert_eq!(
            (got, findings.len()),
            (CUresult::CUDA_SUCCESS, 0),
            "{} {findings:?}",
            case.name
        );
    }
}
