//! Short chunks of a prompt behind a long context: blocks share it, and the answers stay.

use super::cpu_reference::LONGEST;
use super::play::{Played, Request, play};
use super::{AHEAD, ROWS, backend, check, cuda, models, options};
use cuda::Chance;
use std::sync::Arc;
use trail_runtime::cuda::CudaOptions;

#[test]
fn cuda_split_prefill() {
    let session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let mut chance = Chance(41);
    let prompt = (0..900).map(|_| chance.below(256) as u32).collect();
    let requests = [Request { chunk: ROWS, ..Request::greedy(prompt, 3, 0) }];
    let options = CudaOptions { max_context: LONGEST, ..options() };
    let mut backend = backend(&model, &options);
    let Played { answers, .. } = play(&mut backend, &requests, AHEAD, &mut |_, _| ()).unwrap();
    let launched = backend.device().launched();
    assert!(launched.iter().any(|(name, _)| name.starts_with("attention_merge")), "{launched:?}");
    cuda::note_proofs(backend.device(), &session);
    drop(backend);
    check(&model, &requests, &answers);
}
