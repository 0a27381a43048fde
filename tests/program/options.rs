//! Which command takes which options, and the size of its help.

use std::fs;
use std::path::Path;

use crate::common::{assert_refused, trail_rt};

/// The one line with which `arguments` are refused.
fn refusal(arguments: &[&str]) -> String {
    let output = trail_rt(arguments);
    assert_refused(&output, 2, "");
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn options_that_a_command_does_not_read_are_refused() {
    for (arguments, option, reader, help) in [
        (&["doctor", "--express", "3"][..], "--express", "serve", "doctor"),
        (&["theory", "--lambda", "0.5", "--repack"], "--repack", "serve", "theory"),
        (&["pull", "--probe", "x", "a/b"], "--probe", "serve", "pull"),
        (&["doctor", "--port", "9"], "--port", "serve", "doctor"),
        (&["--threads", "2", "replay", "x"], "--threads", "serve", "replay"),
        (&["doctor", "--megakernel"], "--megakernel", "serve", "doctor"),
    ] {
        let error = refusal(arguments);
        for part in [&format!("{option} is an option of "), reader, &format!("{help} --help")] {
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
    }
}

#[test]
fn options_that_the_policy_does_not_have_are_named() {
    let generate = ["generate", "--prompt", "a", "--max-tokens", "1"];
    for (options, says) in [
        (
            &["--policy", "fcfs", "--tail-bound", "2", "--c", "0.5"][..],
            "fcfs has no --tail-bound, --c",
        ),
        (&["--policy", "sjf", "--min-run-tokens", "2"], "sjf has no --min-run-tokens"),
        (&["--policy", "gittins", "--initial-share", "0.2"], "gittins has no --initial-share"),
        (&["--tail-bound", "2", "--c", "0.5", "--initial-length", "mean"], ""),
    ] {
        let output = trail_rt(&[&generate[..], options].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.contains(says), "{options:?}: {errors}");
        assert_eq!(errors.contains(" has no "), !says.is_empty(), "{options:?}: {errors}");
    }
}

/// The help of `command`, and the options that it shows.
fn help(command: &str, all: bool) -> (String, usize) {
    let last = if all { "--help-all" } else { "--help" };
    let arguments: Vec<&str> = command.split_whitespace().chain([last]).collect();
    let output = trail_rt(&arguments);
    assert!(output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let is_option = |line: &&str| {
        // Deeper lines are of a help text.
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim_start());
        indent <= 6
            && (line.starts_with("--") || line.starts_with("-h,") || line.starts_with("-V,"))
    };
    let options = text.lines().filter(is_option).count();
    (text, options)
}

#[test]
fn help_shows_what_a_user_chooses() {
    for (command, max) in [
        ("", 41),
        ("serve", 41),
        ("proxy", 20),
        ("pull", 15),
        ("doctor", 15),
        ("replay", 15),
        ("advise", 15),
        ("theory", 15),
        ("inspect", 15),
        ("probe inspect", 15),
    ] {
        let (text, options) = help(command, false);
        assert!(options <= max && options > 2, "{command}: {options} options\n{text}");
        assert!(!text.contains("--prefill-weight"), "{command}");
    }
}

/// The proxy has two of the policies, and another default.
#[test]
fn a_command_that_takes_less_of_an_option_says_so() {
    for all in [false, true] {
        let (text, _) = help("proxy", all);
        assert!(text.contains("or fcfs [default: sjf]"), "{text}");
        assert!(!text.contains("trail with a probe"), "{text}");
    }
}

#[test]
fn no_help_is_longer_than_three_screens() {
    for command in [
        "serve",
        "proxy",
        "generate",
        "chat",
        "pull",
        "inspect",
        "doctor",
        "replay",
        "advise",
        "theory",
        "simulate",
        "demo",
        "probe collect",
        "probe train",
        "probe fit",
        "probe eval",
        "probe inspect",
        "predictor train",
        "predictor eval",
        "bench decode",
        "bench prefill",
        "bench kernels",
        "bench serve",
    ] {
        let lines = help(command, false).0.lines().count();
        assert!(lines <= 120, "{command}: {lines} lines");
    }
}

#[test]
fn help_all_has_the_options_of_experts() {
    let (few, all) = (help("serve", false).1, help("serve", true));
    assert!(all.1 > few + 10, "{few} and {}", all.1);
    let other = trail_rt(&["help", "serve"]);
    assert!(!String::from_utf8_lossy(&other.stdout).contains("--prefill-weight"));
    for option in ["--prefill-weight", "--isa", "--header-timeout", "--megakernel"] {
        assert!(all.0.contains(option), "{option}");
    }
    assert!(!help("doctor", true).0.contains("--isa"), "doctor does not read it");
}

#[test]
fn a_file_of_options_is_checked_before_anything_is_loaded() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trail.toml");
    let path = file.to_str().expect("UTF-8");
    fs::write(&file, "port = 0\nmodle = \"x\"\n").expect("a file");
    let error = refusal(&["--config", path]);
    assert!(error.contains("line 2: there is no option modle"), "{error}");
    fs::write(&file, "model = \"/nonexistent\"\n").expect("a file");
    let error = refusal(&["serve", "--config", path]);
    assert!(error.contains("/nonexistent"), "{error}");
    let error = refusal(&["serve", "--config", "/nonexistent.toml"]);
    assert!(error.contains("cannot read /nonexistent.toml"), "{error}");
    let error = refusal(&["doctor", "--config", path]);
    assert!(error.contains("--config"), "{error}");
}
