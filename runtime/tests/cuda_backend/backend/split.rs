//! Short chunks of a prompt behind a long context: blocks share it, and the answers stay.

use super::play::{Played, Request, play};
use super::{AHEAD, ROWS, backend, cuda, models, options};
use cuda::Chance;
use std::sync::Arc;
use trail_runtime::backend::SampledToken;
use trail_runtime::cuda::CudaOptions;

#[test]
fn cuda_split_prefill() {
    let session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let mut chance = Chance(41);
    let prompt = (0..560).map(|_| chance.below(256) as u32).collect();
    let requests = [Request { chunk: ROWS, ..Request::greedy(prompt, 3, 0) }];
    let run = |split_prefill: bool| -> Vec<SampledToken> {
        let options = CudaOptions { max_context: 640, split_prefill, ..options() };
        let mut backend = backend(&model, &options);
        let Played { mut answers, .. } =
            play(&mut backend, &requests, AHEAD, &mut |_, _| ()).unwrap();
        let launched = backend.device().launched();
        let merges = launched.iter().any(|(name, _)| name.starts_with("attention_merge"));
        assert_eq!(merges, split_prefill, "{launched:?}");
        cuda::note_proofs(backend.device(), &session);
        answers.remove(0)
    };
    let (cut, whole) = (run(true), run(false));
    assert_eq!(cut.len(), 3);
    for (cut, whole) in cut.iter().zip(&whole) {
        // Sums of two splits instead of one: an error of attention's own size, bf16's.
        assert_eq!(cut.id, whole.id);
        assert!((cut.logprob - whole.logprob).abs() < 2f32.powi(-6), "{cut:?}, {whole:?}");
    }
}
