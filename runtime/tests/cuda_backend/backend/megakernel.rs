//! All layers of a step in one launch: to the bit what five kernels a layer give, whatever grid is
//! resident, and a barrier that stays right.

use super::play::{Played, Request, Schedule, play};
use super::taps::{by_request, patiently, tapping};
use super::{AHEAD, backend, check, cuda, models, options, same};
use cuda::Chance;
use cudarc::driver::result;
use std::sync::Arc;
use trail_cuda_emulator::Order;
use trail_cuda_emulator::harness::Session;
use trail_runtime::cuda::launch::Launch;
use trail_runtime::cuda::params::MegakernelParams;
use trail_runtime::cuda::plan::attention::{Heads, decode};
use trail_runtime::cuda::plan::gemm::{Epilogue, Product, gemm};
use trail_runtime::cuda::plan::megakernel::{Products, megakernel};
use trail_runtime::cuda::{CudaBackend, CudaOptions, TapMode};
use trail_runtime::model::{Dtype, Model, ModelConfig};

/// Barriers of a launch over both layers of the models here: five stages each, and the launch's
/// end.
const BARRIERS: u32 = 9;

fn fused() -> CudaOptions {
    CudaOptions { megakernel: true, ..options() }
}

/// One to four single rows at a time, at the ends of blocks and in their midst; prompts are of
/// several rows, or of one.
fn requests(vocab: usize) -> Vec<Request> {
    let mut chance = Chance(21);
    let mut request = |length: usize, answer: usize, index: u32| {
        let prompt = (0..length).map(|_| chance.below(vocab) as u32).collect();
        Request::greedy(prompt, answer, index)
    };
    vec![
        Request { surprises: true, ..request(14, 5, 0) },
        Request { pause_every: 3, ..request(31, 6, 1) },
        request(1, 7, 2),
        Request { from: 2, ..request(16, 3, 3) },
    ]
}

/// A played backend's answers, the word of its barrier, and that it ran what it should.
fn run(
    session: &Session,
    model: &Arc<Model>,
    options: &CudaOptions,
    requests: &[Request],
) -> (Played, Option<u32>) {
    let mut backend = backend(model, options);
    let played = play(&mut backend, requests, AHEAD, &mut |_, _| ()).unwrap();
    let used = ran(&backend);
    assert_eq!(used, options.megakernel);
    cuda::note_proofs(backend.device(), session);
    (played, used.then(|| word(&backend)))
}

/// The same by five kernels a layer: what the launch of all layers is measured by.
fn five_kernels(session: &Session, model: &Arc<Model>, requests: &[Request]) -> Played {
    run(session, model, &options(), requests).0
}

fn ran(backend: &CudaBackend) -> bool {
    backend.device().launched().iter().any(|(kernel, _)| kernel.starts_with("decode_megakernel_"))
}

/// The barrier's word, when all steps have ended.
fn word(backend: &CudaBackend) -> u32 {
    let mut word = [0u32];
    result::ctx::synchronize().unwrap();
    // SAFETY: the barrier is a word, and nothing runs.
    unsafe { result::memcpy_dtoh_sync(&mut word, backend.barrier().unwrap().address()) }.unwrap();
    word[0]
}

/// Several blocks share a tile, and a model without anything to share has one of each.
fn shared(config: ModelConfig) -> Arc<Model> {
    let config = ModelConfig { hidden_size: 200, intermediate_size: 600, ..config };
    Arc::new(Model::random_of(config, Dtype::Bf16, 7).unwrap())
}

fn proves(model: &Arc<Model>, multiprocessors: Option<u32>) {
    let session = trail_cuda_emulator::session();
    if let (Some(emulator), Some(count)) = (session.emulator(), multiprocessors) {
        emulator.multiprocessors(count);
    }
    let requests = requests(model.config.vocab_size);
    let wanted = five_kernels(&session, model, &requests);
    let (found, word) = run(&session, model, &fused(), &requests);
    assert!(same(&wanted.answers, &found.answers), "not the five kernels' bits");
    check(model, &requests, &found.answers);
    let word = word.unwrap();
    assert_eq!(word & 0xffff, 0, "a block has arrived and none has left: {word:x}");
    assert!(word > 0 && (word >> 16).is_multiple_of(BARRIERS), "{word:x}");
    // Kernel by kernel, and once more: the same bits, and as many barriers.
    let eager = CudaOptions { graphs: false, ..fused() };
    let (again, other) = run(&session, model, &eager, &requests);
    assert!(same(&wanted.answers, &again.answers), "graphs");
    assert_eq!(other, Some(word));
}

#[test]
fn cuda_megakernel_grouped_heads() {
    proves(&Arc::new(models::grouped()), None);
}

#[test]
fn cuda_megakernel_windows_and_odd_sizes() {
    proves(&Arc::new(models::windowed()), None);
}

#[test]
fn cuda_megakernel_biases_and_norms_of_heads() {
    proves(&Arc::new(models::biased()), None);
    proves(&Arc::new(models::normed()), None);
}

/// Two heads of each kind on one multiprocessor: more pieces of attention than blocks.
#[test]
fn cuda_megakernel_more_pieces_than_blocks() {
    proves(&Arc::new(models::stretched()), Some(1));
}

/// Twelve query heads to a key head, and tiles that several blocks share.
#[test]
fn cuda_megakernel_wide_groups() {
    proves(&shared(ModelConfig { num_heads: 12, ..models::config() }), None);
}

/// One block a multiprocessor: each is two of the products' blocks in turn.
#[test]
fn cuda_megakernel_blocks_in_turn() {
    let config = ModelConfig { num_heads: 9, head_dim: 128, ..models::config() };
    proves(&shared(config), Some(2));
}

/// A context that attention splits, and splits that a short one leaves empty.
#[test]
fn cuda_megakernel_splits() {
    let session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let mut chance = Chance(22);
    let mut request = |length: usize, index: u32| {
        let prompt = (0..length).map(|_| chance.below(256) as u32).collect();
        Request { chunk: 36, ..Request::greedy(prompt, 4, index) }
    };
    let requests = [request(525, 0), request(3, 1)];
    let long = CudaOptions { max_context: 1024, graphs: false, ..options() };
    let (wanted, _) = run(&session, &model, &long, &requests);
    let (found, _) = run(&session, &model, &CudaOptions { megakernel: true, ..long }, &requests);
    assert!(same(&wanted.answers, &found.answers));
}

/// With a tap there are two launches a step: the rows and the tokens are those of the five kernels,
/// also where the host waits between them.
#[test]
fn cuda_megakernel_taps() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let requests = requests(model.config.vocab_size);
    let (wanted, arrived) = patiently(&model, &tapping(TapMode::Cpu), &requests);
    let rows = by_request(&wanted, &arrived);
    for (mode, graphs) in [(TapMode::Cpu, true), (TapMode::Cpu, false), (TapMode::Blocking, true)] {
        let options = CudaOptions { megakernel: true, graphs, ..tapping(mode) };
        let (found, arrived) = patiently(&model, &options, &requests);
        assert!(same(&wanted.answers, &found.answers), "{mode:?}, graphs {graphs}: tokens");
        assert!(rows == by_request(&found, &arrived), "{mode:?}, graphs {graphs}: rows");
    }
}

/// The upper layers' launch fills the chip; the tapped rows and their flag reach the host before it
/// ends, as they need copy engines and no multiprocessor.
#[test]
fn cuda_megakernel_leaves_the_tap_its_way_to_the_host() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let model = Arc::new(models::grouped());
    let requests = requests(model.config.vocab_size);
    let rows = |options| {
        let (played, arrived) = patiently(&model, &options, &requests);
        by_request(&played, &arrived)
    };
    let wanted = rows(tapping(TapMode::Cpu));
    assert_eq!(emulator.writes_beside(), 0, "no launch fills the chip");
    for graphs in [true, false] {
        // Some or none are done beside a launch, by chance: one seed must show it.
        let shown = (1..=8).any(|seed| {
            emulator.reset();
            emulator.seed(seed);
            emulator.order(Order::Late);
            let options = CudaOptions { megakernel: true, graphs, ..tapping(TapMode::Cpu) };
            assert!(rows(options) == wanted, "graphs {graphs}, seed {seed}");
            emulator.writes_beside() > 0
        });
        assert!(shown, "graphs {graphs}");
    }
}

/// Generations go on over launches and over the end of their count: a launch a step, and no block
/// lost.
#[test]
fn cuda_megakernel_barrier_outlives_launches() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::windowed());
    let mut chance = Chance(23);
    let prompt: Vec<u32> = (0..5).map(|_| chance.below(261) as u32).collect();
    let (answer, schedule) = (20, Schedule { ahead: false, ..AHEAD });
    let requests = [Request::greedy(prompt, answer, 0)];
    let mut backend = backend(&model, &fused());
    assert_eq!(word(&backend), 0);
    let first = play(&mut backend, &requests, schedule, &mut |_, _| ()).unwrap();
    // The prompt's step samples the first token.
    let generations = BARRIERS * (answer as u32 - 1);
    assert_eq!(word(&backend), generations << 16);
    drop(backend);
    // Another begins two generations before the count's end.
    let mut backend = super::backend(&model, &fused());
    // SAFETY: the barrier is a word, and nothing runs.
    unsafe { result::memcpy_htod_sync(backend.barrier().unwrap().address(), &[0xfffe_0000u32]) }
        .unwrap();
    let again = play(&mut backend, &requests, schedule, &mut |_, _| ()).unwrap();
    assert_eq!(word(&backend), (generations - 2) << 16);
    assert!(same(&first.answers, &again.answers));
}

/// Blocks that wait for one another must all be resident: a launch of more is refused, where
/// without the attribute it would hang on a device.
#[test]
fn cuda_megakernel_grids_are_resident() {
    let bench = cuda::Bench::open();
    let chip = *bench.device.chip();
    let product =
        |epilogue, features, width| gemm(&chip, Product { epilogue, rows: 1, features, width });
    let products = Products {
        qkv: product(Epilogue::Qkv, 384, 64),
        o: product(Epilogue::Residual, 64, 256),
        gate_up: product(Epilogue::Swiglu, 192, 64),
        down: product(Epilogue::Residual, 64, 96),
    };
    let heads = Heads { kv_heads: 1, group: 4, head_dim: 64 };
    let mut plan = megakernel(&chip, &products, &decode(&chip, 1, heads, 64)).unwrap();
    plan.launch.grid[0] = 1 << 15;
    let launch = Launch { plan: plan.launch, params: MegakernelParams::default() };
    // SAFETY: parameters of nothing but zeros, for a launch that the driver refuses.
    let refused = unsafe { bench.device.launch(&bench.stream, &launch) };
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("COOPERATIVE_LAUNCH_TOO_LARGE"), "{message}");
}
