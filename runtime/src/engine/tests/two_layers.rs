//! A probe over two layers reads both outputs, side by side, and what else its file names.

use std::sync::Mutex;

use trail_probe::{Beside, Bins, HeadKind, Partials, Rows, TapLayers, Tracker, Weights};

use super::*;
use crate::backend::{Batch, HiddenSink, RequestKey, TapPlan, TapStage};
use crate::cpu::Tap;
use crate::engine::LengthProbe;

#[test]
fn a_probe_over_two_layers_reads_both() {
    for (inputs, kind) in Inputs::ALL.into_iter().zip([HeadKind::ALL, HeadKind::ALL].concat()) {
        check(inputs, kind);
    }
}

fn check(inputs: Inputs, kind: HeadKind) {
    let model = model();
    let d = model.config.hidden_size;
    let new_probe = || {
        let layers = TapLayers::new(&[0, 1]).unwrap();
        let weights = Weights::random(2 * d, 16, 10, 3).with_random(inputs, 5);
        Probe::new(Weights { kind, ..weights }, Bins::equal(10, 100), layers)
    };
    let probe = LengthProbe::new(new_probe(), 1, 4);
    let sinks = [0, 1].map(|_| Mutex::new(TapStage::new(d, 1, 1, 4)));
    let mut forward = config(&model, PolicyKind::Fcfs).cpu_forward(&model).unwrap();
    let mut tracker = Tracker::new(new_probe().filter(), 1);
    let head = new_probe().head;
    let (partials, mut prompt) = (Partials::new(&head, 1), head.prompt_sums());
    // Two chunks of a prompt, then an output token.
    let steps: [(u32, &[u32]); 3] = [(0, &[5, 9]), (2, &[13, 2, 7]), (5, &[11])];
    for (step, (start, tokens)) in (1..).zip(steps) {
        let (mut batch, mut plan) = (Batch::default(), TapPlan::with_capacity(1));
        batch.push(0, start, tokens, &[0], true);
        plan.fill(&batch, |_| RequestKey { generation: 1, prompt_len: 5 });
        let tap = |layer, at, receiver| Tap { layer, at, step, plan: &plan, receiver };
        let taps = [
            tap(0, 0, &probe as &dyn HiddenSink),
            tap(0, 0, &sinks[0]),
            tap(1, 0, &sinks[1]),
            tap(1, 1, &probe),
        ];
        forward.forward(&batch, &taps);
        while probe.assist() {}
        if plan.rows.is_empty() {
            continue;
        }
        let parts = sinks.each_ref().map(|sink| sink.lock().unwrap().activations().to_vec());
        let (activation, mut p) = (parts.concat(), [0.0; 10]);
        let generated = plan.rows[0].generated;
        if generated == 0 {
            head.read_prompt(&activation, 5, &partials, &mut prompt);
        }
        let beside = |_| Beside { generated, prompt: Some(&prompt) };
        let rows = Rows { activations: &activation, beside: &beside };
        head.forward(rows, 1, &partials, &mut p);
        let expected = tracker.observe(0, 1, generated, &p).unwrap();
        let found = probe.read(0).expect("an estimate");
        assert_eq!((found.step, found.estimate), (step, expected));
    }
}
