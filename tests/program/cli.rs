//! The command line: answers, and one-line errors.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::deadline::{self, Deadline};
use crate::common::{PROGRAM, assert_refused, trail_rt};
use serde_json::Value;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");

/// Copies the demo model to a folder `name`, for tests that damage it.
pub(crate) fn copy_of_demo(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(Path::new(DEMO).join(file), folder.join(file)).expect("a copy");
    }
    folder
}

pub(crate) fn generate(folder: &Path) -> std::process::Output {
    let model = ["--model", folder.to_str().expect("UTF-8")];
    trail_rt(&[&model[..], &["generate", "--prompt", "hi", "--max-tokens", "2"]].concat())
}

fn json(arguments: &[&str]) -> Value {
    let output = trail_rt(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn json_and_text_tell_the_same() {
    let arguments = ["generate", "--prompt", "Count to ten.", "--max-tokens", "20", "--seed", "3"];
    let text = trail_rt(&arguments);
    assert!(text.status.success());
    let object = json(&[&arguments[..], &["--json", "--logprobs", "2"]].concat());
    let text_field = object["text"].as_str().expect("text");
    assert_eq!(String::from_utf8_lossy(&text.stdout).trim_end(), text_field.trim_end());
    let count = |name: &str| object[name].as_array().map(Vec::len).expect("an array");
    assert_eq!((count("logprobs"), count("top_logprobs")), (count("tokens"), count("tokens")));
    assert!(count("prompt_tokens") > 0 && count("predictions") > 0);
    assert!(object["predictions"][0]["remaining"].is_number());
    assert!(["stop", "length"].contains(&object["finish_reason"].as_str().expect("a reason")));
    assert!(object["timing"]["ttft_s"].is_number());
}

#[test]
fn a_prompt_comes_as_text_as_ids_or_from_stdin() {
    let options = ["--max-tokens", "8", "--seed", "3", "--json"];
    let text = json(&[&["generate", "--prompt", "Spell house."], &options[..]].concat());
    let ids = text["prompt_tokens"].as_array().expect("ids").iter().map(Value::to_string);
    let ids = ids.collect::<Vec<_>>().join(",");
    let same = json(&[&["generate", "--prompt-ids", &ids], &options[..]].concat());
    assert_eq!(text["tokens"], same["tokens"]);
    let raw = json(&[&["generate", "--raw", "--prompt", "Spell house."], &options[..]].concat());
    assert_ne!(text["prompt_tokens"], raw["prompt_tokens"], "the chat template adds its tokens");

    let mut child = Command::new(PROGRAM)
        .args(["generate", "--prompt", "-"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(b"Spell house.").expect("written");
    let output = deadline::end(child);
    let piped: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(piped["tokens"], text["tokens"]);
}

#[test]
fn a_model_without_tokenizer_still_takes_ids() {
    let folder = copy_of_demo("no-tokenizer");
    fs::remove_file(folder.join("tokenizer.json")).expect("removed");
    assert_refused(&generate(&folder), 1, "tokenizer.json");
    let path = folder.to_str().expect("UTF-8");
    let object =
        json(&["--model", path, "generate", "--prompt-ids", "0,40", "--max-tokens", "3", "--json"]);
    assert_eq!(object["text"], "");
    assert!(!object["tokens"].as_array().expect("tokens").is_empty());
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    let long = "word ".repeat(3000);
    let cases: [(&[&str], &str); 22] = [
        (&["generate"], "--prompt"),
        (&["generate", "--prompt", "hi", "--max-tokens", "0"], "--max-tokens"),
        (&["generate", "--prompt", "hi", "--max-tokens", "100000"], "context"),
        (&["generate", "--prompt", "hi", "--max-tokens", "99999999999"], "--max-tokens"),
        (&["generate", "--prompt", &long], "context"),
        (&["generate", "--prompt-ids", "1,x"], "--prompt-ids"),
        (&["generate", "--prompt-ids", "5000"], "vocabulary"),
        (&["generate", "--prompt", "hi", "--prompt-ids", "1"], "cannot be used with"),
        (&["generate", "--prompt", "hi", "--temperature", "-1"], "temperature must"),
        (&["generate", "--prompt", "hi", "--top-p", "0"], "top_p"),
        (&["generate", "--prompt", "hi", "--stop", ""], "stop"),
        (&["generate", "--prompt", "hi", "--max-running", "0"], "--max-running"),
        (&["generate", "--prompt", "hi", "--policy", "best"], "policy"),
        (&["generate", "--prompt", "hi", "--c", "2"], "--c"),
        (&["--device", "tpu", "doctor"], "--device"),
        (&["--device", "gpu", "doctor"], "cpu, cuda, cuda:NUMBER or auto"),
        (&["generate", "--prompt", "hi", "--model", "trail/none"], "--model hf:trail/none"),
        (&["generate", "--prompt", "hi", "--kv-blocks", "99999999"], "--kv-blocks"),
        (&["generate", "--prompt", "hi", "--token-budget", "99999999999"], "--token-budget"),
        (
            &["generate", "--prompt", "hi", "--max-running", "8", "--max-requests", "4"],
            "max_requests",
        ),
        (&["--port", "9", "doctor"], "--port"),
        (&["fly"], "fly"),
    ];
    for (arguments, says) in cases {
        assert_refused(&trail_rt(arguments), 2, says);
    }
}

#[test]
fn a_prompt_that_is_no_text_is_refused() {
    let prompt = OsStr::from_bytes(b"caf\xe9");
    let output = deadline::output(Command::new(PROGRAM).args(["generate", "--prompt"]).arg(prompt));
    assert_refused(&output, 2, "UTF-8");
}

#[test]
fn models_that_cannot_be_loaded_are_refused_in_one_line() {
    let folder = copy_of_demo("truncated");
    let weights = fs::read(folder.join("model.safetensors")).expect("weights");
    fs::write(folder.join("model.safetensors"), &weights[..weights.len() / 2]).expect("written");
    assert_refused(&generate(&folder), 1, "model.safetensors");

    let folder = copy_of_demo("other-shape");
    let config = fs::read_to_string(folder.join("config.json")).expect("a configuration");
    let spoiled = config.replace("\"intermediate_size\": 640", "\"intermediate_size\": 648");
    fs::write(folder.join("config.json"), spoiled).expect("written");
    assert_refused(&generate(&folder), 1, "mlp");

    let folder = copy_of_demo("other-family");
    let spoiled =
        config.replace("LlamaForCausalLM", "MambaForCausalLM").replace("\"llama\"", "\"mamba\"");
    fs::write(folder.join("config.json"), spoiled).expect("written");
    assert_refused(&generate(&folder), 1, "config.json");
}

#[test]
fn without_a_probe_trail_is_refused_and_the_default_is_fcfs() {
    let folder = copy_of_demo("no-probe");
    let path = folder.to_str().expect("UTF-8");
    let arguments = ["--model", path, "generate", "--prompt", "hi", "--max-tokens", "2"];
    let output = trail_rt(&arguments);
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && warning.starts_with("warning: no probe"), "{warning}");
    assert_eq!(warning.lines().count(), 1, "{warning}");
    let refused = |more: &[&str], says| {
        assert_refused(&trail_rt(&[&arguments[..], more].concat()), 2, says);
    };
    refused(&["--policy", "trail"], "--probe FILE");
    refused(&["--policy", "sjf", "--length-predictor", "prompt-probe"], "is the probe on the");
}

/// Arguments that are wrong, the part of the line on stderr that says why, and the command whose
/// help it points at.
const MISTAKES: [(&[&str], &str, &str); 57] = [
    (&["--model", "/nonexistent"], "/nonexistent", ""),
    (&["--probe", "/nonexistent"], "/nonexistent", ""),
    (&["--port", "70000"], "--port", ""),
    (&["--policy", "oracle"], "demo and bench serve", ""),
    (&["--max-gap-ms", "-1"], "--max-gap-ms", ""),
    (&["serve", "--policy", "oracle"], "demo and bench serve", "serve"),
    (&["serve", "--model", "/nonexistent"], "/nonexistent", "serve"),
    (&["generate", "--prompt", "hi", "--model", "/nonexistent"], "/nonexistent", "generate"),
    (&["generate", "--prompt", "hi", "--policy", "oracle"], "bench serve", "generate"),
    (&["generate", "--prompt", "hi", "--max-tokens", "-1"], "--max-tokens", "generate"),
    (&["generate", "--prompt", "hi", "--top-k", "-1"], "--top-k", "generate"),
    (&["chat", "--model", "/nonexistent"], "/nonexistent", "chat"),
    (&["chat", "--temperature", "x"], "--temperature", "chat"),
    (&["chat", "--stop", ""], "stop", "chat"),
    (&["pull"], "OWNER/NAME", "pull"),
    (&["pull", "a"], "OWNER/NAME", "pull"),
    (&["generate", "--prompt", "hi", "--model", "hf:a/b:../c"], "no file", "generate"),
    (&["inspect", "/nonexistent"], "/nonexistent", "inspect"),
    (&["inspect", "--batch", "0"], "--batch", "inspect"),
    (&["inspect", "--context", "5000"], "--context is 5000", "inspect"),
    (&["inspect", "hf:a"], "OWNER/NAME", "inspect"),
    (&["demo", "--max-tokens", "100000"], "--max-tokens is 100000", "demo"),
    (&["demo", "--max-tokens", "0"], "--max-tokens is 0", "demo"),
    (&["demo", "--load", "-1"], "--load", "demo"),
    (&["demo", "--prompts", "-1"], "--prompts", "demo"),
    (&["demo", "--rounds", "0"], "--rounds", "demo"),
    (&["doctor", "--prompt", "hi"], "--prompt", "doctor"),
    (&["theory"], "--lambda", "theory"),
    (&["theory", "--lambda", "1"], "below 1", "theory"),
    (&["theory", "--lambda", "0"], "above 0", "theory"),
    (&["theory", "--lambda", "-0.5"], "--lambda", "theory"),
    (&["theory", "--lambda", "NaN"], "--lambda", "theory"),
    (&["theory", "--lambda", "0.9", "--c", "1.1"], "--c", "theory"),
    (&["theory", "--lambda", "0.9", "--c", "NaN"], "--c", "theory"),
    (&["theory", "--lambda", "0.9", "--predictor", "best"], "exponential and perfect", "theory"),
    (&["theory", "--lambda", "0.9", "--simulate", "0"], "--simulate", "theory"),
    (&["theory", "--lambda", "0.9", "--sweep"], "cannot be used with", "theory"),
    (&["theory", "--lambda", "0.9", "--refined", "--simulate", "9"], "cannot be used", "theory"),
    (&["bench", "decode", "--batch", "0"], "--batch", "bench decode"),
    (&["bench", "decode", "--batch", "100000", "--context", "1"], "1 to 4096", "bench decode"),
    (&["bench", "decode", "--random-weights", "none"], "llama3-8b", "bench decode"),
    (&["bench", "decode", "--model", "/nonexistent"], "/nonexistent", "bench decode"),
    (
        &["bench", "decode", "--device", "cpu", "--batch", "4096", "--context", "1000000"],
        "of memory are available",
        "bench decode",
    ),
    (&["bench", "prefill", "--tokens", "0"], "--tokens", "bench prefill"),
    (&["bench", "decode", "--kv-dtype", "q4_0"], "f32, f16, bf16 or q8_0", "bench decode"),
    (&["bench", "sampling", "--batch", "0"], "--batch", "bench sampling"),
    (&["bench", "overlap", "--context", "0"], "--context", "bench overlap"),
    (&["bench", "overlap", "--context", "5000"], "--context is 5000", "bench overlap"),
    (&["bench", "steps", "--repeats", "0"], "--repeats", "bench steps"),
    (&["bench", "kernels", "--rows", "0"], "--rows", "bench kernels"),
    (&["bench", "kernels", "--shape", "none"], "llama3-8b", "bench kernels"),
    (&["bench", "kernels", "--window-ms", "-1"], "--window-ms", "bench kernels"),
    (&["bench", "load", "--piece-kib", "0"], "--piece-kib", "bench load"),
    (&["bench", "swap", "--pool-blocks", "5"], "--pool-blocks", "bench swap"),
    (&["bench", "scheduler", "--running", "4000000000"], "--running", "bench scheduler"),
    (&["bench", "serve", "--loads", "0"], "--loads", "bench serve"),
    (&["bench", "serve", "--requests", "4000000000"], "--requests", "bench serve"),
];

#[test]
fn mistakes_of_every_command_have_code_2_and_name_its_help() {
    for (arguments, says, command) in MISTAKES {
        let output = trail_rt(arguments);
        assert_refused(&output, 2, says);
        let help = format!("see trail-rt {command}").trim_end().to_owned() + " --help";
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.trim_end().ends_with(&help), "{arguments:?}: {errors}");
    }
}

#[test]
fn failures_have_code_1_and_no_help() {
    for arguments in [
        &["demo", "--prompts", "2", "--out", "/dev/null/x"][..],
        &["bench", "steps", "--out", "/dev/null/x"],
        &["bench", "overlap", "--timeline", "/dev/null/x"],
    ] {
        let output = trail_rt(arguments);
        assert_refused(&output, 1, "/dev/null/x");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("--help"), "{arguments:?}");
    }
}

#[test]
fn files_of_another_origin_are_not_replaced() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-origin");
    fs::create_dir_all(&folder).expect("a folder");
    for name in ["demo.json", "demo.svg", "steps.json", "line.json"] {
        fs::write(folder.join(name), "mine").expect("written");
    }
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    for arguments in [
        &["demo", "--prompts", "2", "--out", &path("")][..],
        &["bench", "steps", "--out", &path("steps.json")],
        &["bench", "overlap", "--timeline", &path("line")],
    ] {
        assert_refused(&trail_rt(arguments), 2, "--force");
    }
    for file in fs::read_dir(&folder).expect("the folder") {
        let file = file.expect("a file").path();
        assert_eq!(fs::read_to_string(&file).expect("text"), "mine", "{}", file.display());
    }
}

#[test]
fn a_negative_seed_is_a_seed() {
    let seed = |seed: &str| {
        json(&["generate", "--prompt", "Hi.", "--max-tokens", "8", "--json", "--seed", seed])
    };
    assert_eq!(seed("-1")["tokens"], seed("-1")["tokens"]);
}

#[test]
fn the_bundled_model_beside_the_program_comes_first() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let assets = folder.join("assets/demo");
    fs::create_dir_all(&assets).expect("a folder");
    fs::copy(Path::new(DEMO).join("config.json"), assets.join("config.json")).expect("a copy");
    let program = folder.join("trail-rt");
    let _ = fs::remove_file(&program);
    fs::hard_link(PROGRAM, &program).expect("a link");
    let output = deadline::output(Command::new(&program).args(["doctor", "--json"]));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let found = report["demo_model"].as_str().expect("a path");
    let real = |path: &Path| fs::canonicalize(path).expect("a path");
    assert_eq!(real(Path::new(found)), real(&assets));
}

#[test]
#[cfg(target_os = "linux")]
fn the_kv_cache_takes_memory_when_it_is_used() {
    use std::io::{BufRead, BufReader};
    // 8,192 blocks of 96 KiB.
    let mut child = Command::new(PROGRAM)
        .args(["--port", "0", "--device", "cpu", "--threads", "1", "--kv-blocks", "8192"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let deadline = Deadline::of(child.id());
    let mut listens = String::new();
    let stderr = child.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut listens).expect("the address");
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("a status");
    drop(deadline);
    child.kill().expect("ended");
    child.wait().expect("ended");
    assert!(listens.contains("http://"), "{listens}");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    assert!(kib.is_some_and(|kib| kib < 400 << 10), "{kib:?} KiB of 768 MiB");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(PROGRAM)
        .args(["generate", "--prompt", "hi", "--max-tokens", "900", "--ignore-eos"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let deadline = Deadline::of(child.id());
    let mut reader = child.stdout.take().expect("a pipe");
    reader.read_exact(&mut [0; 4]).expect("the answer begins");
    drop((reader, deadline));
    let output = deadline::end(child);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_doctor_reports_in_both_forms() {
    let report = json(&["doctor", "--json"]);
    assert!(report["cores"].as_u64().is_some_and(|cores| cores > 0));
    let strings = ["/uses/isa", "/uses/byte_products", "/demo_model"];
    assert!(strings.iter().all(|at| report.pointer(at).is_some_and(Value::is_string)));
    assert!(String::from_utf8_lossy(&trail_rt(&["doctor"]).stdout).contains("will be used"));
}

#[test]
fn theory_prints_a_table_or_one_json_object() {
    let point = ["theory", "--lambda", "0.9", "--c", "0.5", "--predictor", "exponential"];
    let output = trail_rt(&[&point[..], &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let keys = ["mean_response", "lemma1_as_printed", "mean_memory", "preemptions_per_job"];
    let positions = keys.map(|key| text.find(&format!("\"{key}\":")).expect("a key"));
    assert!(positions.is_sorted() && text.starts_with("{\"mean_response\":"), "{text}");
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    // An M/G/1 simulation of 20 million jobs: 5.122 with a 95 % interval of 0.006.
    let response = report["mean_response"].as_f64().expect("a number");
    assert!((response - 5.122).abs() < 0.006, "{text}");
    assert_eq!(report["c"], 0.5);
    let table = trail_rt(&[&point[..], &["--simulate", "1000"]].concat());
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("5.122") && table.contains("95 % interval"), "{table}");
    assert_eq!(json(&["theory", "--sweep", "--json"])["rows"].as_array().map(Vec::len), Some(126));
    let refined = json(&["theory", "--lambda", "0.5", "--refined", "--json"]);
    assert!(refined["mean_response"].as_f64() < refined["fcfs"].as_f64(), "{refined}");
}

#[test]
fn a_benchmark_prints_a_table_or_one_json_object() {
    let tiny = ["--device", "cpu", "--random-weights", "tiny", "--repeats", "1"];
    let decode = ["bench", "decode", "--batch", "1,2", "--context", "4"];
    let arguments = [&decode[..], &tiny].concat();
    let report = json(&[&arguments[..], &["--json"]].concat());
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(2));
    let output = trail_rt(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for says in ["model", "tiny", "batch", "tokens/s", "share of"] {
        assert!(text.contains(says), "{says} in {text}");
    }
    assert_eq!(text.lines().rev().take_while(|line| !line.starts_with("---")).count(), 2, "{text}");
    let sampling = ["bench", "sampling", "--batch", "2", "--context", "4", "--json"];
    let report = json(&[&sampling[..], &tiny].concat());
    let rows = report["rows"].as_array().expect("rows");
    let shares = rows.iter().map(|row| row["share_of_step"].as_f64().expect("a number"));
    assert!(rows.len() == 6 && shares.into_iter().all(|share| share > 0.0 && share < 1.0));
}

#[test]
fn bench_without_a_part_lists_the_parts() {
    let output = trail_rt(&["bench"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("overlap") && errors.contains("scheduler"), "{errors}");
    assert!(output.stdout.is_empty());
}
