//! On Hopper: its machine code, products and prefill attention by wgmma.

use super::play::{Played, Request, Schedule, play};
use super::{AHEAD, backend, check, cuda, models, options};
use cuda::Chance;
use std::sync::Arc;
use trail_ptx::Target;
use trail_runtime::cuda::CudaOptions;

/// Rows of the step that takes in all prompts: a tile of wgmma's and a part of the next.
const ROWS: usize = 300;

/// Prompts that one step takes in whole, and their answers.
fn requests() -> Vec<Request> {
    let mut chance = Chance(31);
    let mut request = |index: u32| {
        let prompt = (0..ROWS / 3).map(|_| chance.below(256) as u32).collect();
        Request { chunk: ROWS, ..Request::greedy(prompt, 3, index) }
    };
    (0..3).map(&mut request).collect()
}

#[test]
fn cuda_hopper_prefills_by_wgmma() {
    let session = trail_cuda_emulator::session();
    session.emulator().iter().for_each(|emulator| emulator.hopper());
    let model = Arc::new(models::grouped());
    let options = CudaOptions { max_rows: ROWS, ..options() };
    let mut backend = backend(&model, &options);
    if backend.device().chip().target != Some(Target::Sm90a) {
        eprintln!("skipped: this GPU is no Hopper");
        return;
    }
    let requests = requests();
    let schedule = Schedule { rows: ROWS, ..AHEAD };
    let Played { answers, .. } = play(&mut backend, &requests, schedule, &mut |_, _| ()).unwrap();
    let launched = backend.device().launched();
    // The planner chooses the tile.
    for kernel in ["wgmma_qkv_", "wgmma_residual_", "wgmma_swiglu_", "attention_wgmma_hd64"] {
        let code = launched.iter().find(|(name, _)| name.starts_with(kernel));
        let target = code.map(|(_, code)| code.target());
        assert_eq!(target, Some(Target::Sm90a), "{kernel}: {launched:?}");
    }
    cuda::note_proofs(backend.device(), &session);
    drop(backend);
    check(&model, &requests, &answers);
}
