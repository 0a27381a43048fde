//! Control characters in answers and names.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::trail_rt;
use serde_json::{Value, json};

/// A copy of the demo model whose tokenizer writes ESC and U+009B for two letters.
fn model(name: &str) -> PathBuf {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("control").join(name);
    fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(demo.join(file), folder.join(file)).expect("a copy");
    }
    let text = fs::read(demo.join("tokenizer.json")).expect("a tokenizer");
    let mut tokenizer: Value = serde_json::from_slice(&text).expect("JSON");
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let bytes = tokenizer["decoder"].take();
    tokenizer["decoder"] = json!({
        "type": "Sequence",
        "decoders": [bytes, replace("e", "\u{1b}"), replace("a", "\u{9b}")],
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    folder
}

const GREEDY: [&str; 6] = ["--temperature", "0", "--max-tokens", "12", "--prompt", "Hi."];

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_gets_an_answer_escaped_and_a_pipe_as_it_is() {
    use std::io::Read;
    use std::process::Command;

    use crate::common::PROGRAM;
    use crate::common::deadline::Deadline;
    use crate::terminal::Terminal;

    let model = model("answers");
    let arguments =
        [&["generate", "--model", model.to_str().expect("UTF-8")], &GREEDY[..]].concat();
    let piped = trail_rt(&arguments).stdout;
    let piped = String::from_utf8(piped).expect("UTF-8");
    assert!(piped.contains('\u{1b}') && piped.contains('\u{9b}'), "{piped:?}");

    let terminal = Terminal::new();
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(terminal.program()).stdout(terminal.program());
    let mut child = command.spawn().expect("the program starts");
    drop(command);
    let _deadline = Deadline::of(child.id());
    let mut shown = Vec::new();
    // The end of the program is an error of the terminal.
    let _ = terminal.person().read_to_end(&mut shown);
    assert!(child.wait().expect("ended").success());
    let shown = String::from_utf8(shown).expect("UTF-8");
    let expected = piped.replace('\u{1b}', "\\u{1b}").replace('\u{9b}', "\\u{9b}");
    assert_eq!(shown.replace("\r\n", "\n"), expected);
}

#[test]
fn a_name_is_one_line_of_printable_characters() {
    let model = model("a\n\u{1b}]0;b\u{202e}");
    let path = model.to_str().expect("UTF-8");
    let report = String::from_utf8(trail_rt(&["inspect", "--model", path]).stdout).expect("UTF-8");
    let first = report.lines().next().expect("a line");
    assert!(first.contains("a\\n\\u{1b}]0;b\\u{202e} ("), "{first}");
    fs::remove_file(model.join("config.json")).expect("removed");
    let refused = trail_rt(&["inspect", "--model", path]);
    let errors = String::from_utf8(refused.stderr).expect("UTF-8");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("a\\n\\u{1b}]0;b\\u{202e}"), "{errors}");
}
