//! Start-up without a thing that the device lacks: graphs, pinned memory, launches that overlap.
//! The answers are the same, with one warning for each.

use super::play::play;
use super::{AHEAD, backend, models, options, requests};
use std::sync::Arc;
use trail_cuda_emulator::harness::Chip;
use trail_ptx::Target;
use trail_runtime::backend::Progress;
use trail_runtime::cuda::{Code, CudaBackend, CudaOptions};
use trail_runtime::model::Model;

/// The answers of a new backend for `options`, its warnings, and the steps that were graphs.
fn run(model: &Arc<Model>, options: &CudaOptions) -> (Vec<Vec<u32>>, Vec<String>, u64) {
    let mut backend = backend(model, options);
    let answers = answers(&mut backend, model);
    (answers, backend.warnings().to_vec(), backend.replayed_steps())
}

fn answers(backend: &mut CudaBackend, model: &Model) -> Vec<Vec<u32>> {
    let requests = &requests(model.config.vocab_size)[..3];
    let played = play(backend, requests, AHEAD, &mut |_, _| ()).unwrap();
    let ids = played.answers.iter().map(|answer| answer.iter().map(|token| token.id).collect());
    ids.collect()
}

/// Memory that a backend without graphs takes of a device of `bytes`.
fn taken(backend: &CudaBackend, bytes: u64) -> u64 {
    bytes - backend.device().free_bytes().unwrap() as u64
}

/// The pool that takes what is left leaves room for the graphs, which take their memory at start.
#[test]
fn cuda_graphs_have_room_beside_the_largest_pool() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let model = Arc::new(models::grouped());
    // Requests that could use all of it.
    let options = CudaOptions { kv_blocks: None, max_context: 1 << 16, ..options() };
    emulator.memory(768 << 20);
    let (_, warnings, replayed) = run(&model, &options);
    assert_eq!(warnings, [""; 0]);
    assert!(replayed > 0);
}

#[test]
fn cuda_steps_without_memory_for_a_graph_are_launched_kernel_by_kernel() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let (model, memory) = (Arc::new(models::grouped()), 1 << 30);
    emulator.memory(memory);
    let (expected, warnings, all) = run(&model, &options());
    assert!(warnings.is_empty() && all > 0, "{warnings:?}");
    let eager = CudaOptions { graphs: false, ..options() };
    let needed = taken(&backend(&model, &eager), memory);
    for (spare, is_some) in [(64 << 10, false), (3 << 20, true)] {
        emulator.memory(needed + spare);
        let (answers, warnings, replayed) = run(&model, &options());
        assert_eq!(answers, expected);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let says = "uploading a graph: CUDA_ERROR_OUT_OF_MEMORY (2) (driver of CUDA 12.4): ";
        let graphs = warning.strip_prefix(says).expect(warning);
        assert_eq!(!graphs.starts_with("0 of "), is_some, "{warning}");
        assert!(replayed < all, "{replayed} of {all}");
    }
}

#[test]
fn cuda_the_host_pool_is_as_large_as_the_system_pins() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let model = Arc::new(models::grouped());
    let (expected, _, _) = run(&model, &options());
    emulator.host_memory(24 << 20);
    let options = CudaOptions { host_kv_bytes: 64 << 20, ..options() };
    let (answers, warnings, _) = run(&model, &options);
    assert_eq!(answers, expected);
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.starts_with("the system pins 16 MiB of host memory"), "{warning}");
}

/// A driver that records no launch which overlaps its predecessor gets none.
#[test]
fn cuda_an_older_driver_records_steps_of_hopper() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    emulator.hopper();
    let model = Arc::new(models::grouped());
    let (expected, _, _) = run(&model, &options());
    emulator.driver(12_020);
    let (answers, warnings, replayed) = run(&model, &options());
    assert_eq!((answers, warnings), (expected, Vec::new()));
    assert!(replayed > 0);
}

/// Blackwell has its machine code. For a chip without, the driver compiles the text of all kernels
/// that steps launch, with progress, and the answers are the same.
#[test]
fn cuda_kernels_without_machine_code_are_compiled_with_progress() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let model = Arc::new(models::grouped());
    let (expected, _, _) = run(&model, &options());
    let chips = [
        (Chip::B200, Code::Cubin(Target::Sm100)),
        (Chip::Rtx5090, Code::Cubin(Target::Sm120)),
        (Chip::Thor, Code::Ptx),
    ];
    for (chip, code) in chips {
        emulator.chip(chip);
        let mut seen = Vec::new();
        let mut note = |progress: Progress| seen.push(progress);
        let mut backend = CudaBackend::new(&model, &options(), None, &mut note).unwrap();
        let compiled = backend.device().kernels().unwrap();
        assert_eq!(answers(&mut backend, &model), expected, "{chip:?}");
        let launched = backend.device().launched();
        assert!(launched.iter().all(|(_, found)| *found == code), "{chip:?}: {launched:?}");
        seen.retain(|progress| progress.what == "kernels");
        let done: Vec<_> = seen.iter().map(|progress| (progress.done, progress.total)).collect();
        let texts = if code == Code::Ptx { done.len() as u64 } else { 0 };
        assert_eq!(done, (0..texts).map(|at| (at, texts - 1)).collect::<Vec<_>>(), "{chip:?}");
        assert_eq!(texts > 0, chip == Chip::Thor);
        let is_compiled = |name| compiled.iter().any(|kernel| kernel.name == name);
        let at_start = launched.iter().all(|(name, _)| is_compiled(*name));
        assert!(at_start || texts == 0, "a kernel was compiled in a step: {launched:?}");
    }
}
