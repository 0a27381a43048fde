//! Completions of bash, and man pages.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{assert_refused, trail_rt};

/// The words that bash offers for the last of `words`.
fn completed(words: &[&str]) -> Vec<String> {
    let output = trail_rt(&["completions", "bash"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trail-rt.bash");
    fs::write(&file, output.stdout).expect("a script is written");
    // As bash calls it: the function fills COMPREPLY by compgen.
    let call = r#"
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _trail__rt "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let bash = Command::new("bash")
        .args(["--norc", "-c", &format!(". '{}'{call}", file.display()), "bash", "trail-rt"])
        .args(words)
        .output()
        .expect("bash runs");
    assert!(bash.status.success() && bash.stderr.is_empty(), "{bash:?}");
    String::from_utf8(bash.stdout).expect("UTF-8").lines().map(String::from).collect()
}

#[test]
#[cfg(unix)]
fn bash_completes_commands_options_and_values() {
    assert_eq!(completed(&["ser"]), ["serve"]);
    assert_eq!(completed(&["bench", "dec"]), ["decode"]);
    assert_eq!(completed(&["serve", "--drain"]), ["--drain-seconds"]);
    assert_eq!(completed(&["--generation-config", "mo"]), ["model"]);
    assert_eq!(completed(&["bench", "decode", "--bat"]), ["--batch"]);
    assert_eq!(completed(&["completions", "fi"]), ["fish"]);
}

#[test]
fn other_shells_have_completions_and_unknown_ones_are_refused() {
    for (shell, part) in [("zsh", "#compdef trail-rt"), ("fish", "complete -c trail-rt")] {
        let output = trail_rt(&["completions", shell]);
        assert!(String::from_utf8_lossy(&output.stdout).contains(part), "{shell}");
    }
    assert_refused(&trail_rt(&["completions", "perl"]), 2, "perl");
    let output = trail_rt(&["completions", "bash", "--json"]);
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(object["shell"], "bash");
    assert!(object["script"].as_str().expect("a text").contains("compgen"));
}

#[test]
fn every_command_has_a_man_page() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man_pages");
    let _ = fs::remove_dir_all(&folder);
    let output = trail_rt(&["man-pages", folder.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let pages = printed.lines().count();
    assert!(pages > 30 && pages == fs::read_dir(&folder).expect("the folder").count(), "{pages}");
    let page = fs::read_to_string(folder.join("trail-rt-bench-decode.1")).expect("a page");
    assert!(page.contains(".TH trail-rt-bench-decode 1") && page.contains("batch"), "{page}");
    let file = folder.join("trail-rt.1");
    let inside = file.join("x");
    assert_refused(&trail_rt(&["man-pages", inside.to_str().expect("UTF-8")]), 1, "trail-rt.1");
}
