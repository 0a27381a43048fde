//! Length predictors on the demo model: trained, compared, used.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::collection::{Folder, collecting, json};
use crate::common::{Server, assert_refused, trail_rt};
use crate::encoder::{overflow, write_encoder, write_head};
use serde_json::json;
use trail_probe::{Bins, Probe, Storage, TapLayers, Weights};

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
    let batches = |sizes: &str| trail_rt(&[&eval[..], &["--batches", sizes]].concat());
    let within = &json(&batches("2,3"))["predictors"]["prompt-length"]["tau_b_in_batches"];
    assert_eq!((&within[0]["batch"], &within[1]["batch"]), (&2.into(), &3.into()), "{within}");
    assert_refused(&batches("2,5000"), 2, "half of the");
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

    // An encoder is for the heads over it: the others have theirs beside them.
    let (own, other) = (folder.file("own"), folder.file("other.safetensors"));
    write_encoder(&own);
    write_head(&beside, &other);
    let eval = ["predictor", "eval", "--json", "--data", &data, &out, &other, "--encoder", &own];
    json(&trail_rt(&eval));
    let constant = ["--length-predictor", "constant:5", "--encoder", &own];
    assert_refused(&used(&constant), 2, "no length predictor here reads embeddings");
}

#[test]
fn a_prompt_that_an_encoder_cannot_read_is_reported_and_counted() {
    let folder = Folder::new("unread");
    let (data, encoder, out) =
        (folder.file("data"), folder.file("encoder"), folder.file("head.safetensors"));
    write_encoder(&encoder);
    // The first word of some of the collection's prompts.
    let tokenizer = Path::new(&encoder).join("tokenizer.json");
    let text = fs::read_to_string(&tokenizer).expect("a tokenizer");
    fs::write(&tokenizer, text.replace("\"the\"", "\"Show\"")).expect("written");
    overflow(&encoder);
    write_head(&encoder, &out);
    let log = folder.file("log.jsonl");
    let options = ["--length-predictor", &out, "--policy", "sjf", "--record", &log];
    let mut server = Server::start(&options);
    let completion = |prompt: &str, n: u32| {
        let body = json!({ "prompt": prompt, "max_tokens": 64, "n": n });
        server.post("/v1/completions", &body);
    };
    completion("Hide", 2);
    assert_eq!(server.metric("trail_predictions_failed_total"), 0.0);
    completion("Show", 1);
    completion("Show", 1);
    assert_eq!(server.metric("trail_predictions_failed_total"), 2.0);
    server.terminate();
    let (_, stderr) = server.end();
    assert_eq!(stderr.matches("no predicted length").count(), 1, "{stderr}");
    let log = fs::read_to_string(&log).expect("a log");
    let events = log.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let events: Vec<serde_json::Value> = events.collect();
    let submitted = events.iter().filter_map(|event| event.get("submit"));
    let predicted: Vec<_> = submitted.map(|of| of["initial_prediction"].as_f64()).collect();
    assert_eq!(predicted, [Some(20.0), Some(20.0), None, None]);

    json(&trail_rt(&collecting(&data, &["--layers", "3", "--rows", "1"])));
    let output = trail_rt(&["predictor", "eval", "--data", &data, &out]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{errors}");
    assert!(errors.contains(&format!("{out} has no prediction for some prompt")), "{errors}");
}

#[test]
fn a_policy_that_makes_no_use_of_the_option_is_reported() {
    let constant = ["--length-predictor", "constant:5"];
    let stderr = |more: &[&str]| {
        let output = used(&[&constant[..], more].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && errors.lines().count() <= 1, "{errors}");
        errors
    };
    assert_eq!(stderr(&["--policy", "sjf"]), "");
    for policy in ["fcfs", "rr", "mlfq"] {
        let errors = stderr(&["--policy", policy]);
        assert!(errors.contains(&format!("policy {policy} orders requests without")), "{errors}");
    }
    // A model without a probe.
    let folder = Folder::new("no-probe");
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(demo.join(file), folder.file(file)).expect("a copy");
    }
    let model = folder.file("");
    assert!(stderr(&["--model", &model]).contains("shortest predicted job first"));
}

#[test]
fn a_probe_of_another_width_is_refused() {
    let folder = Folder::new("widths");
    let (data, probe) = (folder.file("data"), folder.file("probe.safetensors"));
    json(&trail_rt(&collecting(&data, &["--layers", "3", "--rows", "1"])));
    for width in [128, 200, 512] {
        let other =
            Probe::new(Weights::random(width, 16, 10, 1), Bins::default(), TapLayers::one(3));
        fs::write(&probe, other.to_bytes(Storage::F32)).expect("written");
        let output = trail_rt(&["predictor", "eval", "--data", &data, "--probe", &probe]);
        assert_refused(&output, 2, "the model's are 256 wide");
    }
}

#[test]
fn predictors_of_other_models_and_absent_encoders_are_refused() {
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
        ("--data", "/nonexistent", "give a folder that trail-rt probe collect made"),
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
