//! `trail-rt probe` on the demo model: collected, trained, evaluated, served.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::collection::{Folder, collecting, json};
use crate::common::{assert_refused, trail_rt};
use serde_json::Value;
use trail_probe::{Bins, HeadKind, Inputs, Predictor, Probe, Storage, TapLayers, Weights};
use trail_training::Shard;

/// Options of a small training.
fn training<'a>(data: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let options = ["probe", "train", "--json", "--data", data, "--out", out, "--threads", "2"];
    [&options[..], &["--epochs", "3", "--hidden", "32", "--batch", "32"], more].concat()
}

/// Trains a probe with its filter and options of the rank, and returns the report.
fn trained_by_replay(folder: &Folder, data: &str, probe: &str) -> Value {
    let plain = ["--seed", "1,2,1", "--head", "bins,bins", "--inputs", "activation", "--curve"];
    let trained = |more: &[&str]| json(&trail_rt(&training(data, probe, more)));
    let options = |report: &Value| report["rank_options"].as_array().expect("a list").clone();
    let by_probe = options(&trained(&[&plain[..5], &["activation"]].concat()));
    // From here on it is beside the probe, and the probe will be served with it.
    let predictor = folder.file("predictor.safetensors");
    json(&trail_rt(&["predictor", "train", "--json", "--data", data, "--out", &predictor]));
    let report = trained(&[&plain[..], &["--force"]].concat());
    let options = options(&report);
    assert_eq!((options.len(), by_probe.len()), (24, 12), "3 filters; the probe has no share");
    assert_eq!(
        (&options[0]["min_run_tokens"], &options[0]["initial_share"]),
        (&24.into(), &0.0.into())
    );
    assert!(options.iter().all(|of| of["tails"][1].as_f64().is_some_and(|tail| tail > 0.0)));
    assert_ne!(options[0], by_probe[0], "r is another");
    assert!(options.contains(&report["chosen"]));
    let inspected = json(&trail_rt(&["probe", "inspect", "--json", probe]));
    assert_eq!(inspected["filter"], report["chosen"]["filter"]);
    for (name, default) in [("min_run_tokens", 24.0), ("express", 0.5), ("initial_share", 0.0)] {
        let chosen = &report["chosen"][name];
        let kept = if chosen.as_f64() == Some(default) { &Value::Null } else { chosen };
        assert_eq!(&inspected["rank_options"][name], kept, "{name}");
    }
    report
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
    let report = trained_by_replay(&folder, &data, &probe);
    assert_eq!(report["rows"].as_array().expect("a list").len(), 4);
    assert_eq!(report["replays"].as_array().expect("a list").len(), 3, "filters");
    let curve = report["curve"].as_array().expect("a list");
    let answers = curve.iter().map(|point| point["answers"].as_u64().expect("a number"));
    let answers: Vec<u64> = answers.collect();
    assert!(answers.len() == 3 && answers.is_sorted() && answers[0] > 0, "{answers:?}");
    assert!(curve.iter().all(|point| point["gains"][1].as_f64().is_some_and(|gain| gain > 0.0)));
    assert!(!Path::new(&format!("{probe}.state")).exists(), "nothing is left to go on with");
    let trained = Probe::open(&probe).expect("a probe");
    let layer = trained.layers.single().expect("one layer");
    assert!([2, 3].contains(&layer) && trained.fit.is_some() && trained.model.is_some());
    assert_eq!(trained.bins.max_tokens(), 64);

    let inspected = json(&trail_rt(&["probe", "inspect", "--json", &probe]));
    assert_eq!(inspected["layer"], layer);
    assert_eq!(
        (&inspected["record"]["seed"], &inspected["fit"]["states"]),
        (&report["seed"].to_string().into(), &64.into())
    );

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
    assert_eq!(keys, ["raw", "refined", "constant", "prompt_probe", "bag_of_tokens"]);
    let picture = fs::read_to_string(&plot).expect("a plot");
    assert!(picture.starts_with("<svg") && picture.contains("mean absolute error"));
    let simulated = ["simulate", "--json", "--trace", &traces, "--policies", "trail"];
    json(&trail_rt(&simulated));

    let other = if report["chosen"]["filter"] == "bins" { "tokens" } else { "bins" };
    let by_other = json(&trail_rt(&[&of_data[..], &["--filter", other]].concat()));
    assert_eq!(by_other["mae"]["raw"], by_data["mae"]["raw"]);
    assert_ne!(by_other["mae"]["refined"], by_data["mae"]["refined"]);
    let prompt = ["generate", "--prompt", "hi", "--max-tokens", "4", "--policy", "trail"];
    let output = trail_rt(&[&prompt[..], &["--probe", &probe]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let both = json(&trail_rt(&training(&data, &probe, &["--data", &held, "--force"])));
    assert_eq!(both["record"]["training_prompts"], "48");
}

/// The options of the rank in the decision log of `policy`.
fn recorded(folder: &Folder, policy: &str, options: &[&str]) -> Value {
    let (out, log) = (folder.file("out"), folder.file("log.jsonl"));
    let demo = ["demo", "--prompts", "2", "--max-tokens", "4", "--out", &out, "--record", &log];
    let output = trail_rt(&[&demo[..], &["--policies", policy], options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = fs::read_to_string(folder.file(&format!("log.{policy}.jsonl"))).expect("a log");
    let header: Value = serde_json::from_str(log.lines().next().expect("a line")).expect("JSON");
    header["trail"]["ranking"].clone()
}

#[test]
fn a_probe_brings_the_options_of_its_rank() {
    let folder = Folder::new("rank-options");
    let file = folder.file("probe.safetensors");
    let mut probe = Probe::random(256, 3, 1);
    probe.rank_options.min_run_tokens = Some(3);
    probe.rank_options.express = Some(2.0);
    probe.rank_options.initial_share = Some(0.25);
    fs::write(&file, probe.to_bytes(Storage::Bf16)).expect("written");
    let with = |policy: &str, more: &[&str]| {
        let ranking = recorded(&folder, policy, &[&["--probe", &file], more].concat());
        (ranking["min_run_tokens"].clone(), ranking["express"].clone())
    };
    assert_eq!(with("trail", &[]), (3.into(), 2.0.into()));
    assert_eq!(with("trail-auto", &["--express", "0.25"]), (3.into(), 0.25.into()));
    assert_eq!(with("gittins", &[]), (24.into(), 0.5.into()), "it was chosen for trail");
    assert_eq!(with("trail", &["--paper"]), (0.into(), 0.0.into()));
    let share = |more: &[&str]| {
        let options = [&["--probe", &file], more].concat();
        recorded(&folder, "trail", &options)["initial_share"].clone()
    };
    assert_eq!(share(&[]), 0.25, "the bundled predictor makes the first prediction");
    assert_eq!(share(&["--length-predictor", "constant:9"]), 0.0, "which says nothing");
}

#[test]
fn the_probes_in_the_repository_are_whole_small_and_of_one_model_each() {
    let folders = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/probes"));
    let folders = folders.expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut models = Vec::new();
    for folder in folders.filter(|path| path.is_dir()) {
        let file = |name: &str| folder.join(format!("{name}.safetensors"));
        let (probe, predictor) = (file("probe"), file("predictor"));
        for path in [&probe, &predictor] {
            assert!(fs::metadata(path).expect("a file").len() < 1_500_000, "{}", path.display());
        }
        let probe = Probe::open(probe).expect("a probe");
        let predictor = Predictor::open(predictor).expect("a predictor");
        assert!(probe.model.is_some() && probe.model == predictor.model);
        models.push(probe.model);
    }
    models.sort();
    models.dedup();
    assert_eq!(models.len(), 2, "{models:?}");
}

#[test]
fn a_probe_over_two_layers_is_trained_evaluated_and_used() {
    let folder = Folder::new("two-layers");
    let (data, probe) = (folder.file("data"), folder.file("probe.safetensors"));
    json(&trail_rt(&collecting(&data, &["--layers", "2+4", "--rows", "0"])));
    let all = ["--layers", "2+4", "--head", "survival", "--inputs", "activation+prompt+age"];
    let report = json(&trail_rt(&training(&data, &probe, &all)));
    assert_eq!(report["layer"], "2+4");
    let replays = report["replays"].as_array().expect("a list");
    assert_eq!((replays.len(), &replays[0]["head"]), (1, &"survival".into()), "no filter");
    let trained = Probe::open(&probe).expect("a probe");
    assert_eq!(trained.weights.inputs(), Inputs::ALL[3]);
    assert_eq!((trained.weights.kind, trained.bins.count()), (HeadKind::Survival, 16));
    let inspected = json(&trail_rt(&["probe", "inspect", "--json", &probe]));
    assert_eq!((&inspected["layer"], &inspected["shape"][0]), (&"2+4".into(), &512.into()));
    let reads = (&inspected["head"], &inspected["inputs"]);
    assert_eq!(reads, (&"survival".into(), &"activation+prompt+age".into()));
    let eval = ["probe", "eval", "--json", "--probe", &probe];
    for filter in ["bins", "tokens"] {
        let filtered = [&eval[..], &["--data", &data, "--filter", filter]].concat();
        assert_refused(&trail_rt(&filtered), 2, "leave the option out");
    }
    let paper = ["generate", "--prompt", "hi", "--policy", "trail", "--paper", "--probe", &probe];
    assert_refused(&trail_rt(&paper), 2, "probe train --head bins");
    let by_data = json(&trail_rt(&[&eval[..], &["--data", &data]].concat()));
    let prompts = ["--requests", "24", "--max-tokens", "64"];
    let by_prompts = json(&trail_rt(&[&eval[..], &prompts].concat()));
    assert_eq!(by_data["mae"], by_prompts["mae"]);
    let prompt = ["generate", "--prompt", "hi", "--max-tokens", "4", "--policy", "trail"];
    let output = trail_rt(&[&prompt[..], &["--probe", &probe]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let one = folder.file("one");
    json(&trail_rt(&collecting(&one, &["--layers", "4", "--rows", "0"])));
    let absent = trail_rt(&[&eval[..], &["--data", &one]].concat());
    assert_refused(&absent, 2, "reads layer 2");
    let other = trail_rt(&training(&data, &probe, &["--data", &one]));
    assert_refused(&other, 2, "another list of layers than");
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
        let report = json(&trail_rt(&training(&data, probe, &[])));
        let best = |replay: &Value| replay["shortfall"] == 0.0;
        let replays = report["replays"].as_array().expect("a list");
        // With each of two sets of inputs a head of bins with three filters, and one of survival.
        assert_eq!((replays.len(), best(&replays[0])), (8, true));
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
    refused(&["--inputs", "age"], 2, "one of activation, activation+age");
    refused(&["--head", "cox"], 2, "bins or survival");
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
        let mut probe = Probe::new(weights, Bins::default(), TapLayers::one(3));
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
