//! `trail-rt probe` and `trail-rt predictor` on the demo model: collected, trained, evaluated,
//! served.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use common::{assert_refused, trail_rt};
use serde_json::Value;
use trail_probe::{Bins, Probe, Storage, Weights};
use trail_training::Shard;

const PROMPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo/prompts.jsonl");

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("trail-probe-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Options of a small collection in `folder`.
fn collecting<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let options =
        ["probe", "collect", "--json", "--device", "cpu", "--max-tokens", "64", "--out", folder];
    [&options[..], &["--prompts", PROMPTS, "--requests", "24", "--shard", "8"], more].concat()
}

/// Options of a small training.
fn training<'a>(data: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let options = ["probe", "train", "--json", "--data", data, "--out", out, "--threads", "2"];
    [&options[..], &["--epochs", "3", "--hidden", "32", "--batch", "32"], more].concat()
}

#[test]
fn a_probe_is_collected_trained_evaluated_and_used() {
    let folder = Folder::new("whole");
    let (data, held) = (folder.file("data"), folder.file("held"));
    let report = json(&trail_rt(&collecting(&data, &["--layers", "2,3", "--rows", "8"])));
    assert_eq!((&report["answers"], &report["shards"]), (&24.into(), &3.into()));
    let rows = report["rows"].as_u64().expect("a number");
    assert!(rows > 24 * 4 && rows <= 24 * 8, "{rows}");

    let probe = folder.file("probe.safetensors");
    let report = json(&trail_rt(&training(&data, &probe, &["--seed", "1,2"])));
    assert_eq!(report["rows"].as_array().expect("a list").len(), 4);
    assert!(!Path::new(&format!("{probe}.state")).exists(), "nothing is left to go on with");
    let trained = Probe::open(&probe).expect("a probe");
    assert!([2, 3].contains(&trained.layer) && trained.fit.is_some() && trained.model.is_some());
    assert_eq!(trained.bins.max_tokens(), 64);

    let inspected = json(&trail_rt(&["probe", "inspect", "--json", &probe]));
    assert_eq!(inspected["layer"], trained.layer);
    assert_eq!(
        (&inspected["record"]["seed"], &inspected["fit"]["states"]),
        (&report["seed"].to_string().into(), &64.into())
    );
    let predictor = folder.file("predictor.safetensors");
    json(&trail_rt(&["predictor", "train", "--json", "--data", &data, "--out", &predictor]));

    // Held-out answers: all rows, by another path to the same figures.
    let all = ["--layers", "2,3", "--rows", "0", "--first", "24", "--seed", "3"];
    json(&trail_rt(&collecting(&held, &all)));
    let of_data = ["probe", "eval", "--json", "--probe", &probe, "--data", &held];
    let by_data = json(&trail_rt(&of_data));
    let (traces, plot) = (folder.file("traces.jsonl"), folder.file("eval.svg"));
    let of_prompts = ["probe", "eval", "--json", "--probe", &probe, "--first", "24", "--seed", "3"];
    let more = ["--requests", "24", "--max-tokens", "64", "--traces", &traces, "--plot", &plot];
    let by_prompts = json(&trail_rt(&[&of_prompts[..], &more].concat()));
    for member in ["rows", "mae", "mae_by_age", "bin_accuracy", "ece", "tau_b"] {
        assert!(!by_data[member].is_null(), "{member}");
        assert_eq!(by_data[member], by_prompts[member], "{member}");
    }
    let keys: Vec<&String> = by_data["mae"].as_object().expect("errors").keys().collect();
    assert_eq!(keys, ["bag_of_tokens", "constant", "prompt_probe", "raw", "refined"]);
    let picture = fs::read_to_string(&plot).expect("a plot");
    assert!(picture.starts_with("<svg") && picture.contains("mean absolute error"));
    let simulated = ["simulate", "--json", "--trace", &traces, "--policy", "trail"];
    json(&trail_rt(&simulated));

    let bins = ["--filter", "bins"];
    let by_bins = json(&trail_rt(&[&of_data[..], &bins].concat()));
    assert_eq!(by_bins["mae"]["raw"], by_data["mae"]["raw"]);
    assert_ne!(by_bins["mae"]["refined"], by_data["mae"]["refined"]);
    let prompt = ["generate", "--prompt", "hi", "--max-tokens", "4", "--policy", "trail"];
    let output = trail_rt(&[&prompt[..], &["--probe", &probe]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn length_predictors_are_trained_compared_and_used() {
    let folder = Folder::new("predictors");
    let (data, held) = (folder.file("data"), folder.file("held"));
    json(&trail_rt(&collecting(&data, &["--layers", "3", "--rows", "1"])));
    json(&trail_rt(&collecting(&held, &["--layers", "3", "--first", "24", "--seed", "3"])));
    let mut files = Vec::new();
    for (features, objective) in [
        ("bag-of-tokens", "cross-entropy"),
        ("bag-of-tokens", "listmle"),
        ("prompt-length", "l1"),
        ("prompt-length", "mse"),
        ("prompt-length", "listmle"),
    ] {
        let out = folder.file(&format!("{features}-{objective}.safetensors"));
        let options = ["predictor", "train", "--json", "--data", &data, "--out", &out];
        let more = ["--features", features, "--objective", objective, "--bins", "8"];
        let report = json(&trail_rt(&[&options[..], &more].concat()));
        assert_eq!(report["record"]["objective"], objective);
        assert_eq!(
            report["record"].get("validation_accuracy").is_some(),
            objective == "cross-entropy"
        );
        files.push(out);
    }
    let mut eval = vec!["predictor", "eval", "--json", "--data", &held];
    eval.extend(files.iter().map(String::as_str));
    let report = json(&trail_rt(&eval));
    let of = |name: &str, figure: &str| report["predictors"][name][figure].as_f64();
    for name in files.iter().map(String::as_str).chain(["prompt-length", "the model's own"]) {
        for figure in ["mae", "rmse", "mae_countdown"] {
            let value = of(name, figure).unwrap_or(f64::NAN);
            assert!(value > 0.0 && value < 600.0, "{name} {figure}: {value}");
        }
        assert!(of(name, "tau_b").is_some_and(|tau| tau.abs() <= 1.0), "{name}");
    }
    assert!(of("prompt-probe", "mae").is_some() && of(&files[0], "bin_accuracy").is_some());
    let table = trail_rt(&eval.iter().filter(|of| **of != "--json").copied().collect::<Vec<_>>());
    assert!(String::from_utf8_lossy(&table.stdout).contains("tau-b"));

    // Its own answers are a perfect predictor; those to other prompts are none.
    let again =
        |again: &str| trail_rt(&["predictor", "eval", "--json", "--data", &held, "--again", again]);
    let own = &json(&again(&held))["predictors"]["another answer"];
    assert_eq!((&own["mae"], &own["tau_b"]), (&0.0.into(), &1.0.into()));
    assert_refused(&again(&data), 2, "with another --seed");

    for kind in ["constant:40", "prompt-length", "prompt-probe", "hint", &files[1], &files[2]] {
        for policy in ["ltr", "trail"] {
            let output = used(&["--length-predictor", kind, "--policy", policy]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{kind} {policy}: {errors}");
        }
    }
}

/// A short answer with these options.
fn used(options: &[&str]) -> Output {
    trail_rt(&[&["generate", "--prompt", "hi", "--max-tokens", "4"][..], options].concat())
}

/// Writes a DistilBERT of two tokens and two elements to `folder`.
fn write_encoder(folder: &str) {
    let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/encoder/distilbert");
    let seed = fs::read(seed).expect("a seed");
    fs::create_dir_all(folder).expect("a folder");
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    for (name, bytes) in names.iter().zip(seed.splitn(3, |&byte| byte == 0)) {
        fs::write(Path::new(folder).join(name), bytes).expect("written");
    }
}

#[test]
fn a_head_over_an_encoder_is_trained_evaluated_and_used() {
    let folder = Folder::new("encoder");
    let (data, encoder, out) =
        (folder.file("data"), folder.file("bert"), folder.file("head.safetensors"));
    write_encoder(&encoder);
    json(&trail_rt(&collecting(&data, &["--layers", "3", "--rows", "1"])));
    let features = format!("encoder:{encoder}");
    let options = ["predictor", "train", "--json", "--data", &data, "--out", &out];
    let more = ["--features", &features, "--objective", "listmle", "--hidden", "4x2"];
    let report = json(&trail_rt(&[&options[..], &more, &["--pooling", "cls"]].concat()));
    assert_eq!(report["record"]["hidden"], "4x2");
    let eval = ["predictor", "eval", "--json", "--data", &data, &out, "--encoder", &encoder];
    let report = json(&trail_rt(&eval));
    assert!(report["predictors"][&out]["mae"].as_f64().is_some_and(|mae| mae < 64.0));

    let head = ["--length-predictor", &out, "--policy", "sjf"];
    let of = |encoder: &[&str]| used(&[&head[..], encoder].concat());
    let output = of(&["--encoder", &encoder]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_refused(&of(&[]), 2, "give the folder of a BERT");
    // Beside the head it needs no option.
    let beside = folder.file("encoder");
    fs::rename(&encoder, &beside).expect("renamed");
    assert!(of(&[]).status.success());
    let weights = Path::new(&beside).join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(&weights, bytes).expect("written");
    assert_refused(&of(&[]), 2, "was trained on another encoder");
}

#[test]
fn predictors_of_other_models_and_encoders_that_are_not_there_are_refused() {
    let folder = Folder::new("other-predictors");
    let data = folder.file("data");
    json(&trail_rt(&collecting(&data, &["--layers", "3", "--rows", "1"])));
    let other = folder.file("other.safetensors");
    let layer = trail_probe::predictor::Layer::new(&[1.0], &[0.0]);
    let features = trail_probe::predictor::Features::PromptLength;
    let output = trail_probe::predictor::Output::Tokens;
    let mut predictor = trail_probe::Predictor::new(features, output, vec![layer]);
    predictor.model = Some("0123".into());
    fs::write(&other, predictor.to_bytes(Storage::F32)).expect("written");
    assert_refused(&used(&["--length-predictor", &other]), 2, "with --force-probe");
    assert!(used(&["--length-predictor", &other, "--force-probe"]).status.success());
    fs::write(&other, "x").expect("written");
    assert_refused(&used(&["--length-predictor", &other]), 1, "header");
    let encoder = format!("encoder:{}", folder.file("nowhere"));
    let options = ["predictor", "train", "--data", &data, "--out", &other, "--force"];
    let output = trail_rt(&[&options[..], &["--features", &encoder]].concat());
    assert_refused(&output, 2, "give the folder of a BERT");
}

#[test]
fn mistakes_about_length_predictors_are_refused_in_one_line() {
    let train = ["predictor", "train", "--data", "x", "--out", "y"];
    for (option, value, says) in [
        ("--features", "encoder:", "bag-of-tokens, prompt-length or encoder:DIR"),
        ("--features", "embedding", "bag-of-tokens, prompt-length or encoder:DIR"),
        ("--objective", "best", "listmle"),
        ("--hidden", "64x0", "UNITSxLAYERS"),
        ("--hidden", "64", "--features encoder:DIR"),
        ("--bins", "65", "--bins"),
        ("--bucket", "0", "--bucket"),
        ("--data", "/nonexistent", "cannot be used multiple times"),
    ] {
        assert_refused(&trail_rt(&[&train[..], &[option, value]].concat()), 2, says);
    }
    let eval = ["predictor", "eval", "--data", "/nonexistent"];
    assert_refused(&trail_rt(&eval), 2, "trail-rt probe collect");
    for (kind, says) in [
        ("/nonexistent", "there is no length predictor /nonexistent"),
        ("constant", "constant:TOKENS"),
        ("constant:0", "constant:TOKENS"),
        ("constant:many", "constant:TOKENS"),
    ] {
        let generate = ["generate", "--prompt", "hi", "--length-predictor", kind];
        assert_refused(&trail_rt(&generate), 2, says);
    }
}

#[test]
fn what_was_stopped_goes_on_to_the_same_end() {
    let folder = Folder::new("resumed");
    let data = folder.file("data");
    json(&trail_rt(&collecting(&data, &["--layers", "3"])));
    // The order of the metadata in a file is not fixed.
    let content = || {
        let bytes = fs::read(Path::new(&data).join("shard-00001.safetensors")).expect("a file");
        let shard = Shard::parse(Arc::new(bytes), "shard").expect("a shard");
        let mut rows = vec![0.0; shard.rows().len() * shard.hidden()];
        for (row, out) in rows.chunks_exact_mut(shard.hidden()).enumerate() {
            shard.activation(3, row, out);
        }
        (shard.answers().to_vec(), shard.rows().to_vec(), rows)
    };
    let before = content();
    fs::remove_file(Path::new(&data).join("shard-00001.safetensors")).expect("removed");
    let out = folder.file("early.safetensors");
    assert_refused(&trail_rt(&training(&data, &out, &[])), 1, "lacks 1 of 3 shards");
    json(&trail_rt(&collecting(&data, &["--layers", "3"])));
    assert!(content() == before, "the shard that was collected again differs");
    let other = trail_rt(&collecting(&data, &["--layers", "3", "--seed", "2"]));
    assert_refused(&other, 2, "with other options");

    let probes = ["a", "b"].map(|name| folder.file(&format!("{name}.safetensors")));
    for probe in &probes {
        json(&trail_rt(&training(&data, probe, &[])));
    }
    let [a, b] = probes.map(|probe| Probe::open(probe).expect("a probe"));
    assert!(a.weights == b.weights && a.fit == b.fit && a.record == b.record);
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let folder = Folder::new("refused");
    let data = folder.file("data");
    json(&trail_rt(&collecting(&data, &["--layers", "3"])));
    let out = folder.file("probe.safetensors");
    let refused = |more: &[&str], code, why| {
        assert_refused(&trail_rt(&training(&data, &out, more)), code, why);
    };
    refused(&["--layers", "2"], 2, "--layers names 2");
    refused(&["--bins", "65"], 2, "--bins");
    refused(&["--rate", "-1"], 2, "--rate");
    let nowhere = folder.file("nowhere");
    let output = trail_rt(&["probe", "train", "--data", &nowhere, "--out", &out]);
    assert_refused(&output, 2, "give a folder that trail-rt probe collect made");
    let output = trail_rt(&["probe", "eval", "--data", &data]);
    assert_refused(&output, 1, "collect with --rows 0");
    let layers = trail_rt(&collecting(&folder.file("x"), &["--layers", "6"]));
    assert_refused(&layers, 2, "there are 0, 1, 2, 3, 4, 5");

    let shard = Path::new(&data).join("shard-00002.safetensors");
    let mut bytes = fs::read(&shard).expect("a shard");
    bytes.truncate(bytes.len() - 1);
    fs::write(&shard, bytes).expect("written");
    refused(&[], 1, "collect it again");
    assert!(!Path::new(&format!("{out}.state")).exists());

    // A probe of another width, and one of another model.
    let probe = |d: usize, model: Option<&str>| {
        let weights = Weights::random(d, 16, 10, 1);
        let mut probe = Probe::new(weights, Bins::default(), 3);
        probe.model = model.map(str::to_owned);
        fs::write(&out, probe.to_bytes(Storage::F32)).expect("written");
        ["probe", "eval", "--requests", "1", "--max-tokens", "4", "--probe"].map(String::from)
    };
    let eval = |arguments: [String; 7], more: &[&str]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        trail_rt(&[&arguments[..], &[&out], more].concat())
    };
    assert_refused(&eval(probe(64, None), &[]), 2, "it was trained for another model");
    assert_refused(&eval(probe(256, Some("0123")), &[]), 2, "with --force-probe");
    let forced = eval(probe(256, Some("0123")), &["--force-probe"]);
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    assert_refused(&eval(probe(256, None), &["--filter", "tokens"]), 2, "choose --filter bins");
}
