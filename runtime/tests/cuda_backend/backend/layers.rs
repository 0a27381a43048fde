//! The demo model's layers, each tapped in turn: the reference's within the tolerance that is
//! derived for the layer, and mistakes that were planted are noticed.

use super::play::Request;
use super::taps::{Rows, by_request, patiently};
use super::{fed, options};
use std::path::Path;
use std::sync::Arc;
use trail_runtime::cuda::{CudaOptions, TapMode};
use trail_runtime::model::Model;
use trail_runtime::reference::{Reference, Trace};
use trail_test_support::cuda::Chance;
use trail_test_support::tolerance::{Tolerance, larger, relative};

/// A tapped row travels as bf16: half a unit in the last place of 8 significant bits.
const ROUNDING: f64 = 1.0 / 512.0;

fn demo() -> Model {
    Model::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo")).unwrap()
}

/// Enough rows for the tiled products in one step, and for the skinny ones in others; the longer
/// prompt comes in two chunks.
fn requests() -> Vec<Request> {
    let mut chance = Chance(41);
    let mut request = |length: usize, answer: usize, index: u32| {
        let prompt = (0..length).map(|_| chance.below(1024) as u32).collect();
        Request { chunk: 60, ..Request::greedy(prompt, answer, index) }
    };
    vec![request(90, 2, 0), request(9, 3, 1)]
}

/// The rows that `model` taps after `layer`, and the sequences that its requests end in.
fn tapped(model: &Arc<Model>, requests: &[Request], layer: usize) -> (Rows, Vec<Vec<u32>>) {
    let options = CudaOptions {
        max_rows: 96,
        graphs: false,
        tap_layer: Some(layer),
        tap: TapMode::Cpu,
        ..options()
    };
    let (played, arrived) = patiently(model, &options, requests);
    let sequences =
        requests.iter().zip(&played.answers).map(|(request, answer)| fed(request, answer));
    (by_request(&played, &arrived), sequences.collect())
}

/// The largest difference of a tapped row from the reference's, in RMS over RMS. The first row of a
/// request is the mean over its prompt.
fn error(rows: &Rows, requests: &[Request], traces: &[Trace], layer: usize) -> f64 {
    let mut worst = 0.0;
    for (&(index, generated), bits) in rows {
        let found: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let (prompt, hidden) = (requests[index].prompt.len(), &traces[index].hidden[layer]);
        let wanted = match generated {
            0 => mean(&hidden[..prompt]),
            generated => hidden[prompt + generated as usize - 1].clone(),
        };
        worst = larger(worst, relative(&found, &wanted));
    }
    worst
}

fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let mut mean = vec![0.0; rows[0].len()];
    for row in rows {
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value / rows.len() as f32);
    }
    mean
}

/// The reference's passes over `sequences`, and what each layer may be off by.
fn expected(model: &Model, sequences: &[Vec<u32>]) -> (Vec<Trace>, Tolerance) {
    let reference = Reference::new(model);
    let traces: Vec<Trace> = sequences.iter().map(|tokens| reference.trace(tokens)).collect();
    let tokens: Vec<&[u32]> = sequences.iter().map(|sequence| &sequence[..]).collect();
    let tolerance = Tolerance::new(model, &tokens, &traces);
    (traces, tolerance)
}

#[test]
fn cuda_every_layer_is_the_references() {
    let _session = trail_cuda_emulator::session();
    let (model, requests) = (Arc::new(demo()), requests());
    let mut known = None;
    for layer in 0..model.config.num_layers {
        let (rows, sequences) = tapped(&model, &requests, layer);
        assert_eq!(rows.len(), 5);
        let (traces, tolerance) = known.get_or_insert_with(|| expected(&model, &sequences));
        let (error, allowed) =
            (error(&rows, &requests, traces, layer), tolerance.h[layer] + ROUNDING);
        println!("layer {layer}: {error:.1e} ({:.2} of the tolerance)", error / allowed);
        assert!(error <= allowed, "layer {layer}: off by {error:.2e}, not {allowed:.2e}");
    }
}

/// The tolerance is not so wide that a pass with something wrong would be within it.
#[test]
fn cuda_mistakes_are_noticed() {
    let _session = trail_cuda_emulator::session();
    let (model, requests) = (Arc::new(demo()), requests());
    let last = model.config.num_layers - 1;
    let (_, sequences) = tapped(&model, &requests, last);
    let (traces, tolerance) = expected(&model, &sequences);
    let noticed = |what: &str, rows: &Rows, traces: &[Trace]| {
        let (error, allowed) = (error(rows, &requests, traces, last), tolerance.h[last] + ROUNDING);
        println!("{what}: {error:.1e} ({:.2} of the tolerance)", error / allowed);
        // Not a number would be no proof.
        assert!(error > 2.0 * allowed, "{what} was not noticed");
    };
    let mut turned = Model::clone(&model);
    turned.config.rope.theta *= 1.3;
    noticed("another base of the rotation", &tapped(&Arc::new(turned), &requests, last).0, &traces);
    let mut wrong = requests.clone();
    wrong[1].prompt[4] ^= 1;
    noticed("one wrong token", &tapped(&model, &wrong, last).0, &traces);
}
