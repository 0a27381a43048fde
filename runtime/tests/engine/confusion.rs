//! Confusion counts of the bundled probe: refined predictions of held-out prompts by true length.
//! The counts are checked in beside the scheduler's noise model; this program computes and compares
//! them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trail_probe::{LengthPredictor, Predictor, Probe, Prompt};
use trail_runtime::engine::{Engine, EngineConfig, Event, Request, SamplingParams};
use trail_runtime::model::Model;
use trail_runtime::text::{ChatMessage, ChatOptions, ChatTemplate, Tokenizer};
use trail_simulator::confusion::{EARLY_TOKENS, bin_of};

/// Longest wait for an event: what comes later hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Predictions for one answer.
struct Trace {
    /// Length predicted from the prompt alone, tokens.
    length: f32,
    /// Predicted remaining tokens, by number of tokens generated `[length of the answer]`.
    refined: Vec<f32>,
}

/// Answers the first `count` held-out prompts.
fn traces(count: usize) -> Vec<Trace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    let model = Arc::new(Model::load(&folder).expect("the bundled model"));
    let tokenizer = Tokenizer::load(&folder, model.config.vocab_size).expect("its tokenizer");
    let template = ChatTemplate::load(&folder).expect("its template");
    let probe = Probe::open(folder.join("probe.safetensors")).expect("its probe");
    let predictor = Predictor::open(folder.join("predictor.safetensors")).expect("its predictor");
    let config = EngineConfig { probe: Some(probe), ..EngineConfig::default() };
    let engine = Engine::new(model, config).expect("an engine");
    let prompts = fs::read_to_string(folder.join("prompts.jsonl")).expect("its prompts");
    let handles: Vec<_> = prompts
        .lines()
        .take(count)
        .map(|line| {
            let prompt: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let content = prompt["prompt"].as_str().expect("a prompt").to_string();
            let turn = ChatMessage::new("user", content);
            let prompt_tokens =
                template.encode(&tokenizer, &[turn], ChatOptions::default()).expect("tokens");
            let seed = prompt["seed"].as_u64().expect("a seed");
            let sampling = SamplingParams { seed, ..SamplingParams::default() };
            let predicted = predictor.predict(&Prompt::new(&prompt_tokens));
            let length = predicted.expect("of tokens").mean();
            let request = Request { sampling, ..Request::new(prompt_tokens, 512) };
            (length, engine.submit(request).expect("fits"))
        })
        .collect();
    handles
        .into_iter()
        .map(|(length, handle)| {
            let (mut tokens, mut refined) = (0, Vec::new());
            loop {
                let event = handle.recv_timeout(LIMIT).expect("an event in time");
                match event {
                    Event::Token { .. } => tokens += 1,
                    Event::Prediction { generated, remaining } => {
                        assert_eq!(generated as usize, refined.len(), "a step without prediction");
                        refined.push(remaining);
                    }
                    Event::Finished { .. } => break,
                    _ => {}
                }
            }
            assert_eq!(refined.len(), tokens);
            Trace { length, refined }
        })
        .collect()
}

/// Formats the counts as the noise model reads them.
fn counts(traces: &[Trace]) -> String {
    let mut rows: BTreeMap<String, BTreeMap<usize, u32>> = BTreeMap::new();
    let mut count = |state: String, predicted_bin: usize| {
        *rows.entry(state).or_default().entry(predicted_bin).or_default() += 1
    };
    let (mut error, mut steps) = (0.0, 0);
    for Trace { length, refined } in traces {
        let total = refined.len() as u32;
        count(format!("length {}", bin_of(total)), bin_of(*length as u32));
        let mut before = None;
        for (generated, &remaining) in (0..total).zip(refined) {
            error += f64::from(remaining - (total - generated) as f32).abs();
            steps += 1;
            let (bin, predicted_bin) = (bin_of(total - generated), bin_of(remaining as u32));
            let state = match before {
                None => format!("prompt {bin}"),
                Some(before) if generated <= EARLY_TOKENS => format!("early {bin} {before}"),
                Some(before) => format!("late {bin} {before}"),
            };
            count(state, predicted_bin);
            before = Some(predicted_bin);
        }
    }
    let lengths: Vec<String> = traces.iter().map(|t| t.refined.len().to_string()).collect();
    let mut text = format!("mae {:.2}\nlengths {}\n", error / f64::from(steps), lengths.join(" "));
    for (state, row) in rows {
        text += &state;
        row.iter().for_each(|(bin, count)| write!(text, " {bin}:{count}").expect("a string"));
        text += "\n";
    }
    text
}

#[test]
#[ignore = "answers 400 prompts: a minute"]
fn the_checked_in_confusion_is_the_bundled_probes() {
    let text = format!("{HEAD}{}", counts(&traces(400)));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simulator/src/confusion/demo.txt");
    if fs::read_to_string(&file).is_ok_and(|checked_in| checked_in == text) {
        return;
    }
    let new = std::env::temp_dir().join("confusion.txt");
    fs::write(&new, text).expect("the temporary folder takes a file");
    panic!("{} is out of date: {} has what was measured now", file.display(), new.display());
}

const HEAD: &str = "\
# What the bundled demo probe and predictor took for what, on the first 400 bundled held-out prompts.
# Made by: cargo test -p trail-runtime --test confusion -- --ignored (on AVX2; others may differ a little)
# length, prompt: true bin of the output's length; early (up to 16 tokens), late: true bin of what remains,
# bin said a token before; then bin:count. Bins of 51.2 tokens.
";
