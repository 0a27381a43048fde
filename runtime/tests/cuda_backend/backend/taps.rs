//! Tapped rows: the CPU's activations, whatever the order of the streams; and a receiver that is
//! too slow for them.

use super::cpu_reference::{cpu, run_cpu};
use super::play::{Played, Request, Schedule, play};
use super::receivers::{Arrived, Keeper};
use super::{AHEAD, backend_with, fed, models, options, requests, same, tolerance};
use half::bf16;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trail_cuda_emulator::Order;
use trail_probe::Weights;
use trail_runtime::backend::Sampled;
use trail_runtime::backend::{Backend, Fault, Step};
use trail_runtime::cuda::{CudaBackend, CudaOptions, StepTimes, TapMode};
use trail_runtime::model::Model;
use trail_test_support::tolerance::relative;

/// The lower layer: the residual stream goes on changing behind it.
const LAYER: usize = 0;
const TAPPING: Schedule = Schedule { taps: true, ..AHEAD };

pub(crate) fn tapping(mode: TapMode) -> CudaOptions {
    CudaOptions { tap_layer: Some(LAYER), tap: mode, probe_threads: 2, ..options() }
}

/// Plays `requests` so that no row is late: a step is launched when the rows of the step two before
/// have arrived.
pub(crate) fn patiently(
    model: &Arc<Model>,
    options: &CudaOptions,
    requests: &[Request],
) -> (Played, Vec<Arrived>) {
    let schedule = Schedule { rows: options.max_rows, ..TAPPING };
    let keeper = Arc::new(Keeper::default());
    let mut backend = backend_with(model, options, keeper.clone());
    let mut expected = Vec::new();
    let arrive = |expected: &[u64]| {
        let begin = Instant::now();
        while keeper.opened.lock().unwrap().len() < expected.len() {
            assert!(begin.elapsed() < Duration::from_secs(20), "the rows of {expected:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    let played = play(&mut backend, requests, schedule, &mut |step, rows| {
        if rows > 0 {
            expected.push(step);
        }
        // The step just launched may still run.
        let before = expected.partition_point(|&other| other < step);
        arrive(&expected[..before]);
    })
    .unwrap();
    arrive(&expected);
    assert_eq!(backend.late_steps(), 0);
    drop(backend);
    let arrived = std::mem::take(&mut *keeper.opened.lock().unwrap());
    let steps: Vec<u64> = arrived.iter().map(|arrived| arrived.step).collect();
    assert_eq!(steps, expected, "each step with rows once, in order");
    for (arrived, &(_, rows)) in arrived.iter().zip(played.tapped.iter().filter(|of| of.1 > 0)) {
        assert_eq!(arrived.rows.len(), rows);
    }
    (played, arrived)
}

/// By request and number of answered tokens: the row's values.
pub(crate) type Rows = HashMap<(usize, u32), Vec<u32>>;

pub(crate) fn by_request(played: &Played, arrived: &[Arrived]) -> Rows {
    let mut rows = Rows::new();
    for step in arrived {
        let width = step.values.len() / step.rows.len();
        for (row, values) in step.rows.iter().zip(step.values.chunks(width)) {
            let request = played.requests_by_index[&(row.request, row.generation)];
            let bits = values.iter().map(|value| value.to_bits()).collect();
            assert!(rows.insert((request, row.generated), bits).is_none(), "{row:?} twice");
        }
    }
    rows
}

/// Every row is the CPU's activation, or the mean over the prompt's.
fn check_rows(model: &Arc<Model>, requests: &[Request], played: &Played, rows: &Rows) {
    let sequences: Vec<_> = requests
        .iter()
        .zip(&played.answers)
        .map(|(request, answer)| fed(request, answer))
        .collect();
    let allowed = tolerance(model, &sequences).h[LAYER];
    let (mut cpu, mut seen) = (cpu(model), 0);
    for (index, sequence) in sequences.iter().enumerate() {
        let prompt = requests[index].prompt.len();
        let expected = run_cpu(&mut cpu, sequence, LAYER);
        let floats = |bits: &[u32]| bits.iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>();
        let mut mean = vec![0.0; model.config.hidden_size];
        for hidden in &expected.hidden[..prompt] {
            mean.iter_mut().zip(hidden).for_each(|(sum, value)| *sum += value / prompt as f32);
        }
        for generated in 0..requests[index].answer as u32 {
            let wanted = if generated == 0 {
                &mean
            } else {
                &expected.hidden[prompt + generated as usize - 1]
            };
            let found = rows.get(&(index, generated));
            let found = found.unwrap_or_else(|| panic!("no row {generated} of request {index}"));
            let off = relative(&floats(found), wanted);
            assert!(
                off <= allowed,
                "request {index}, row {generated}: {off:.2e}, not {allowed:.2e}"
            );
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} rows");
}

#[test]
fn cuda_tapped_rows_are_the_cpus() {
    let session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let requests = requests(model.config.vocab_size);
    let (played, arrived) = patiently(&model, &tapping(TapMode::Cpu), &requests);
    let rows = by_request(&played, &arrived);
    check_rows(&model, &requests, &played, &rows);
    // The same bits by any order of the streams, without graphs, and when the device waits for the
    // host.
    let eager = CudaOptions { graphs: false, ..tapping(TapMode::Cpu) };
    let blocking = tapping(TapMode::Blocking);
    for (order, options) in
        [(Order::Late, &eager), (Order::Early, &tapping(TapMode::Cpu)), (Order::Seeded, &blocking)]
    {
        if let Some(emulator) = session.emulator() {
            emulator.order(order);
        }
        let (again, arrived) = patiently(&model, options, &requests);
        assert!(same(&played.answers, &again.answers), "{order:?}: tokens");
        assert!(rows == by_request(&again, &arrived), "{order:?}: rows");
    }
}

/// Without a tap the tokens are the same: it only looks.
#[test]
fn cuda_probabilities_of_the_device_are_the_probes() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let requests = &requests(model.config.vocab_size)[..5];
    let (played, arrived) = patiently(&model, &tapping(TapMode::Cpu), requests);
    let rows = by_request(&played, &arrived);
    let weights = Weights::random(model.config.hidden_size, 32, 10, 3);
    let on_device = CudaOptions { probe: Some(Arc::new(weights.clone())), ..tapping(TapMode::Gpu) };
    let (again, arrived) = patiently(&model, &on_device, requests);
    assert!(same(&played.answers, &again.answers));
    let probabilities = by_request(&again, &arrived);
    assert_eq!(probabilities.len(), rows.len());
    let floats = |bits: &[u32]| bits.iter().map(|&b| f32::from_bits(b)).collect::<Vec<f32>>();
    for (key, bits) in &probabilities {
        for (found, wanted) in floats(bits).iter().zip(probe(&weights, &floats(&rows[key]))) {
            // 64 products in f32 and ten exponentials: far below this; another row's answer is far
            // beyond.
            assert!((f64::from(*found) - wanted).abs() < 1e-5, "{key:?}: {found}, not {wanted}");
        }
    }
    let untapped = super::answers(&model, &options(), requests, AHEAD);
    assert!(same(&played.answers, &untapped), "tapping changes tokens");
}

/// The probe as it is defined, its first layer's weights in bf16.
fn probe(weights: &Weights, x: &[f32]) -> Vec<f64> {
    let dot = |w: &[f32], x: &[f64]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    let x: Vec<f64> = x.iter().map(|&value| f64::from(value)).collect();
    let narrow: Vec<f32> =
        weights.hidden_weight.iter().map(|&w| bf16::from_f32(w).to_f32()).collect();
    let units = narrow.chunks(weights.d).zip(&weights.hidden_bias);
    let hidden: Vec<f64> = units.map(|(w, b)| (dot(w, &x) + f64::from(*b)).max(0.0)).collect();
    let bins = weights.output_weight.chunks(weights.hidden).zip(&weights.output_bias);
    let exponentials: Vec<f64> =
        bins.map(|(w, b)| (dot(w, &hidden) + f64::from(*b)).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// A receiver that copies a step's rows when the device has overwritten them, and one that predicts
/// from them when later steps are over: the steps do not wait, lost rows are counted, and no row
/// that arrives is of another step.
#[test]
fn cuda_a_slow_receiver_loses_rows_and_delays_no_step() {
    let session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let requests = requests(model.config.vocab_size);
    let (played, arrived) = patiently(&model, &tapping(TapMode::Cpu), &requests);
    let rows = by_request(&played, &arrived);
    if let Some(emulator) = session.emulator() {
        // Rows are written when their step is launched.
        emulator.order(Order::Early);
    }
    for (stage_lag, predict_lag) in [(2, 0), (0, 3)] {
        let keeper = Arc::new(Keeper::default());
        keeper.stage_lag.store(stage_lag, Ordering::Relaxed);
        keeper.predict_lag.store(predict_lag, Ordering::Relaxed);
        let mut backend = backend_with(&model, &tapping(TapMode::Cpu), keeper.clone());
        let again =
            play(&mut backend, &requests, TAPPING, &mut |step, _| keeper.launched(step)).unwrap();
        keeper.launched(u64::MAX);
        assert!(same(&played.answers, &again.answers));
        let late = backend.late_steps();
        drop(backend);
        let arrived = keeper.opened.lock().unwrap();
        let with_rows = again.tapped.iter().filter(|of| of.1 > 0).count();
        println!("{late} of {with_rows} steps late, {} arrived", arrived.len());
        assert!(late > 0 && arrived.len() + late as usize <= with_rows);
        // All but what the end cut off. Only the last two steps have none behind them that
        // overwrites their rows.
        assert!(arrived.len() + late as usize + 2 >= with_rows);
        assert!(stage_lag == 0 || arrived.len() <= 2, "a copy of overwritten rows was used");
        for (key, values) in by_request(&again, &arrived) {
            assert!(rows[&key] == values, "{key:?} is of another step");
        }
    }
}

/// Copies that are still in flight when the step after next is announced set its flag: rows that
/// arrive are those of their step all the same.
#[test]
fn cuda_late_copies_do_not_pass_for_those_of_a_later_step() {
    let session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let requests = requests(model.config.vocab_size);
    let (played, arrived) = patiently(&model, &tapping(TapMode::Cpu), &requests);
    let rows = by_request(&played, &arrived);
    for seed in 1..6 {
        if let Some(emulator) = session.emulator() {
            emulator.seed(seed);
            emulator.order(Order::Late);
        }
        let keeper = Arc::new(Keeper::default());
        let mut backend = backend_with(&model, &tapping(TapMode::Cpu), keeper.clone());
        let again = play(&mut backend, &requests, TAPPING, &mut |_, _| {
            // Time for the tap's threads to poll.
            std::thread::sleep(Duration::from_millis(1));
        });
        let again = again.unwrap();
        drop(backend);
        for (key, values) in by_request(&again, &keeper.opened.lock().unwrap()) {
            assert!(rows[&key] == values, "{key:?} is of another step");
        }
    }
}

/// A thread of the tap that panics says so: steps go on, and the receiver can end waits.
#[test]
fn cuda_a_panic_in_a_tap_thread_reaches_the_receiver() {
    let _session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let requests = &requests(model.config.vocab_size)[..3];
    let keeper = Arc::new(Keeper::default());
    keeper.panics_at.store(2, Ordering::Relaxed);
    let mut backend = backend_with(&model, &tapping(TapMode::Cpu), keeper.clone());
    let played = play(&mut backend, requests, TAPPING, &mut |_, _| ()).unwrap();
    assert!(same(&played.answers, &super::answers(&model, &options(), requests, AHEAD)));
    let begin = Instant::now();
    while !keeper.failed.load(Ordering::Relaxed) {
        assert!(begin.elapsed() < Duration::from_secs(20), "no one heard of it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A backend that is asked when each step's parts ran.
struct Timed {
    backend: CudaBackend,
    times: Vec<(u64, StepTimes)>,
}

impl Backend for Timed {
    fn ahead(&self) -> usize {
        self.backend.ahead()
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        self.backend.launch(step)
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        self.backend.collect(sampled)?;
        self.times.push(self.backend.step_times().unwrap().expect("traced"));
        Ok(())
    }
}

/// A traced step's parts, on the device's own clock, are in order whatever the order of the
/// streams, and its tokens are the same.
#[test]
fn cuda_a_traced_steps_parts_follow_each_other() {
    let session = trail_cuda_emulator::session();
    let model = Arc::new(models::grouped());
    let requests = &requests(model.config.vocab_size)[..4];
    let untraced = super::answers(&model, &options(), requests, AHEAD);
    let weights = Arc::new(Weights::random(model.config.hidden_size, 32, 10, 3));
    for (mode, order) in [(TapMode::Cpu, Order::Early), (TapMode::Gpu, Order::Late)] {
        if let Some(emulator) = session.emulator() {
            emulator.order(order);
        }
        let options = CudaOptions { probe: Some(weights.clone()), ..tapping(mode) };
        let mut backend = backend_with(&model, &options, Arc::new(Keeper::default()));
        assert!(backend.step_times().unwrap().is_none(), "nothing is traced yet");
        let anchor = backend.trace().unwrap();
        let mut timed = Timed { backend, times: Vec::new() };
        let played = play(&mut timed, requests, TAPPING, &mut |_, _| ()).unwrap();
        assert!(same(&played.answers, &untraced), "tracing changes tokens");
        let (mut last_s, until) = (0.0, anchor.at.elapsed() + anchor.error);
        assert_eq!(timed.times.len(), played.tapped.len());
        for ((number, times), &(step, rows)) in timed.times.iter().zip(&played.tapped) {
            assert_eq!((*number, times.tap.is_some()), (step, rows > 0), "{times:?}");
            let parts = [last_s, times.begin_s, times.logits_s, times.end_s];
            assert!(parts.is_sorted(), "step {step} behind {last_s}: {times:?}");
            last_s = times.end_s;
            let Some(tap) = times.tap else { continue };
            assert_eq!(tap.has_probe, mode == TapMode::Gpu);
            assert!([times.begin_s, tap.tapped_s, times.logits_s].is_sorted(), "{times:?}");
            let side = [tap.tapped_s, tap.forked_s, tap.probed_s, tap.copied_s];
            assert!(side.is_sorted(), "step {step}: {times:?}");
        }
        assert!(last_s <= until.as_secs_f64(), "{last_s} s, on the host {until:?}");
    }
}
