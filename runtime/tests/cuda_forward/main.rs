//! Proof of the whole: the demo model's forward pass on the kernels, layer by layer, against the plain reference.
//!
//! Two requests share three steps: whole prompt and first chunk; a decode row and the last chunk; two decode rows. So rows enough for the
//! tiled products come by, and few enough for the skinny ones, over a cache whose blocks lie in random order.

#[path = "../support/cuda.rs"]
mod cuda;
mod forward;
mod steps;
mod tolerance;
mod weights;

use cuda::{Bench, Chance};
use forward::{Computed, Forward};
use half::bf16;
use std::path::Path;
use steps::{Pages, Request, Step};
use tolerance::{Tolerance, larger, largest, relative};
use trail_runtime::model::Model;
use trail_runtime::reference::{Reference, Trace};
use trail_runtime::text::Tokenizer;

trail_cuda_emulator::on_emulator!();

/// Tokens of the prompts, and of the first chunk of the longer one.
const PROMPTS: [usize; 2] = [90, 29];
const CHUNK: usize = 41;
/// The layer whose output the bundled probe reads.
const TAPPED: usize = 3;

/// What is computed, and what it should be.
struct Scene {
    model: Model,
    requests: Vec<Request>,
    pages: Pages,
    steps: Vec<Step>,
    /// The reference's pass over all tokens of each request.
    traces: Vec<Trace>,
    tolerance: Tolerance,
}

impl Scene {
    fn new() -> Scene {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
        let model = Model::load(&folder).unwrap();
        let tokenizer = Tokenizer::load(&folder, model.config.vocab_size).unwrap();
        let text = std::fs::read_to_string(folder.join("prompts.jsonl")).unwrap();
        let mut prompts = text.lines().map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["prompt"].as_str().unwrap().to_owned()
        });
        let reference = Reference::new(&model);
        let (mut requests, mut traces) = (Vec::new(), Vec::new());
        for (prompt, (slot, answer)) in PROMPTS.into_iter().zip([(2, 1), (0, 2)]) {
            let mut tokens = Vec::new();
            while tokens.len() < prompt {
                tokens.extend(tokenizer.encode(&prompts.next().unwrap(), false).unwrap());
            }
            tokens.truncate(prompt);
            // The answer is the reference's, so that one close call does not hide what comes after.
            let mut trace = reference.trace(&tokens);
            for _ in 0..answer {
                tokens.push(argmax(trace.logits.last().unwrap()) as u32);
                trace = reference.trace(&tokens);
            }
            requests.push(Request { slot, tokens });
            traces.push(trace);
        }
        let step = |alone: &[_], chunks: &[_], padding| {
            Step::new(&requests, &PROMPTS, alone, chunks, padding)
        };
        let [long, short] = PROMPTS;
        let steps = vec![
            step(&[], &[(1, 0..short), (0, 0..CHUNK)], 2),
            step(&[Some((1, short)), None], &[(0, CHUNK..long)], 1),
            step(&[Some((0, long)), None, Some((1, short + 1))], &[], 0),
        ];
        let pages = Pages::new(&mut Chance(41), &requests, 4);
        let tokens: Vec<&[u32]> = requests.iter().map(|request| &request.tokens[..]).collect();
        let tolerance = Tolerance::new(&model, &tokens, &traces);
        Scene { model, requests, pages, steps, traces, tolerance }
    }

    fn forward<'a>(&'a self, bench: &'a Bench, model: &'a Model) -> Forward<'a> {
        Forward::new(bench, model, self.pages.clone(), TAPPED)
    }

    /// After each layer: the largest difference of a row from the reference, in RMS over RMS.
    fn errors(&self, step: &Step, computed: &Computed) -> Vec<f64> {
        let d = self.model.config.hidden_size;
        let layer_error = |(layer, h): (usize, &Vec<u32>)| {
            let row_error = |(row, place): (usize, &Option<(usize, usize)>)| {
                let (request, position) = (*place)?;
                let wanted = &self.traces[request].hidden[layer][position];
                Some(relative(&floats(&h[row * d..][..d]), wanted))
            };
            step.rows.iter().enumerate().filter_map(row_error).fold(0.0, larger)
        };
        computed.h[1..].iter().enumerate().map(layer_error).collect()
    }

    /// Errors by layer, and as shares of their tolerances.
    fn shares(&self, errors: &[f64]) -> String {
        let share =
            |(error, tolerance): (&f64, &f64)| format!("{error:.1e} ({:.2})", error / tolerance);
        errors.iter().zip(&self.tolerance.h).map(share).collect::<Vec<_>>().join(", ")
    }

    fn check(&self, step: &Step, computed: &Computed) {
        self.check_embedding(step, computed);
        let errors = self.errors(step, computed);
        println!("{} rows: h within {}", step.rows.len(), self.shares(&errors));
        for (layer, (error, tolerance)) in errors.iter().zip(&self.tolerance.h).enumerate() {
            assert!(error <= tolerance, "layer {layer}: off by {error:.2e}, not {tolerance:.2e}");
        }
        self.check_tap(step, computed);
        self.check_choice(step, computed);
    }

    /// The embedding is exact, and leaves padding rows alone.
    fn check_embedding(&self, step: &Step, computed: &Computed) {
        let d = self.model.config.hidden_size;
        let table = self.model.weights.embed.to_f32();
        for (row, place) in step.rows.iter().enumerate() {
            let wanted: Vec<u32> = match *place {
                None => vec![u32::MAX; d],
                Some((request, position)) => {
                    let token = self.requests[request].tokens[position] as usize;
                    table[token * d..][..d].iter().map(|value| value.to_bits()).collect()
                }
            };
            assert!(computed.h[0][row * d..][..d] == wanted, "row {row}");
        }
    }

    /// Stage rows are the tapped layer's h, rounded; other stage rows are as they were.
    fn check_tap(&self, step: &Step, computed: &Computed) {
        let d = self.model.config.hidden_size;
        let mut wanted = vec![u16::MAX; computed.stage.len()];
        let mut found = computed.stage.clone();
        for (row, &stage) in step.tap_row.iter().enumerate().filter(|(_, stage)| **stage >= 0) {
            let at = stage as usize * d..(stage as usize + 1) * d;
            if step.rows[row].is_none() {
                // A padding row's h is not a number; which one does not matter.
                found[at].fill(u16::MAX);
                continue;
            }
            let h = floats(&computed.h[TAPPED + 1][row * d..][..d]);
            let rounded = h.iter().map(|&value| bf16::from_f32(value).to_bits());
            wanted[at].iter_mut().zip(rounded).for_each(|(to, bits)| *to = bits);
        }
        assert!(found == wanted, "stage rows");
    }

    /// Logits near the reference's; the token is the largest logit's, and the reference's wherever that is not a close call.
    fn check_choice(&self, step: &Step, computed: &Computed) {
        let (vocab, tolerance) = (self.model.config.vocab_size, self.tolerance.logit);
        assert!(!step.logits.is_empty());
        for (index, &row) in step.logits.iter().enumerate() {
            let (request, position) = step.rows[row as usize].unwrap();
            let wanted = &self.traces[request].logits[position];
            let found = floats(&computed.logits[index * vocab..][..vocab]);
            let largest = largest(&found, wanted);
            assert!(largest <= tolerance, "row {row}: a logit off by {largest}, not {tolerance}");
            let (token, best) = (computed.token[index] as usize, argmax(wanted));
            assert_eq!(token, argmax(&found), "row {row}: not the largest logit");
            let gap = f64::from(wanted[best] - wanted[token]);
            println!(
                "  logits within {:.3} of the tolerance {tolerance:.3}; token {token}, best {best}",
                largest / tolerance
            );
            assert!(
                token == best || gap <= 2.0 * tolerance,
                "row {row}: token {token}, not {best}"
            );
        }
    }

    /// Every token fed has keys and values in every layer, and the pool holds nothing else.
    fn check_pool(&self, pool: &[u16]) {
        let config = &self.model.config;
        let written = pool.iter().filter(|&&bits| bits != u16::MAX).count();
        let fed: usize = self.requests.iter().map(|request| request.tokens.len()).sum();
        assert_eq!(written, fed * config.num_layers * 2 * config.kv_size());
    }
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|&bits| f32::from_bits(bits)).collect()
}

fn argmax(logits: &[f32]) -> usize {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0
}

#[test]
fn the_demo_is_the_reference_layer_by_layer() {
    let bench = Bench::new();
    let scene = Scene::new();
    let mut first = scene.forward(&bench, &scene.model);
    let mut second = scene.forward(&bench, &scene.model);
    for step in &scene.steps {
        let computed = first.step(step);
        scene.check(step, &computed);
        assert!(computed == second.step(step), "not the same bits twice");
    }
    let pool = first.pool();
    assert!(pool == second.pool(), "not the same bits twice");
    scene.check_pool(&pool);
    // Many rows and few came by, and both kinds of attention.
    let launched = bench.device.launched();
    for prefix in [
        "skinny_qkv",
        "skinny_residual",
        "skinny_swiglu",
        "tiled_qkv",
        "tiled_residual",
        "tiled_swiglu",
        "attention_decode",
        "attention_prefill",
    ] {
        assert!(
            launched.iter().any(|(name, _)| name.starts_with(prefix)),
            "no {prefix}: {launched:?}"
        );
    }
}

/// The tolerance is not so wide that a pass with something wrong would be within it.
#[test]
fn mistakes_are_noticed() {
    let bench = Bench::new();
    let scene = Scene::new();
    let last = scene.model.config.num_layers - 1;
    let noticed = |what: &str, step: &Step, computed: &Computed| {
        let errors = scene.errors(step, computed);
        println!("{what}: {}", scene.shares(&errors));
        // Not a number would be no proof.
        assert!(errors[last] > 2.0 * scene.tolerance.h[last], "{what} was not noticed");
    };
    let mut forward = scene.forward(&bench, &scene.model);
    forward.step(&scene.steps[0]);
    // Each writes over what the one before has written.
    let mut wrong = Step::clone(&scene.steps[1]);
    wrong.runs[0].context -= 1;
    noticed("a chunk that sees a token less", &wrong, &forward.step(&wrong));
    wrong = Step::clone(&scene.steps[1]);
    wrong.token[wrong.alone + 7] ^= 1;
    noticed("one wrong token", &wrong, &forward.step(&wrong));
    wrong = Step::clone(&scene.steps[1]);
    wrong.position[0] -= 1;
    noticed("a decode row one position early", &wrong, &forward.step(&wrong));

    let mut turned = scene.model.clone();
    turned.config.rope.theta *= 1.1;
    let computed = scene.forward(&bench, &turned).step(&scene.steps[0]);
    noticed("another base of the rotation", &scene.steps[0], &computed);
}
