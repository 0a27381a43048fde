//! `trail-rt chat` with the lines of stdin: turns, commands, errors, Ctrl-C.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::deadline::{self, Deadline};
use crate::common::{PROGRAM, assert_refused, trail_rt};
use serde_json::{Value, json};

const GREEDY: [&str; 4] = ["--temperature", "0", "--max-tokens", "12"];

fn start(options: &[&str]) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(["chat", "--threads", "1"]).args(options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// A chat with `lines` on stdin.
fn chat(options: &[&str], lines: &str) -> Output {
    let mut child = start(options);
    let mut stdin = child.stdin.take().expect("a pipe");
    // A chat that ends before its input closes the pipe.
    let _ = stdin.write_all(lines.as_bytes());
    drop(stdin);
    deadline::end(child)
}

/// The object that a chat with --json prints.
fn talk(options: &[&str], lines: &str) -> Value {
    let output = chat(&[options, &["--json"]].concat(), lines);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chat");
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(name);
    let _ = fs::remove_file(&file);
    file
}

#[test]
fn each_line_is_a_turn_and_the_first_answer_is_that_of_generate() {
    let lines = "Count to ten.\n\nAnd to \\\nfive?\n";
    let object = talk(&GREEDY, lines);
    let messages = object["messages"].as_array().expect("messages");
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(messages[2]["content"], "And to \nfive?");
    let alone = trail_rt(&[&["generate", "--prompt", "Count to ten."], &GREEDY[..]].concat());
    let alone = String::from_utf8(alone.stdout).expect("UTF-8");
    assert_eq!(messages[1]["content"].as_str().map(str::trim_end), Some(alone.trim_end()));

    let text = chat(&GREEDY, lines);
    let answers = String::from_utf8(text.stdout).expect("UTF-8");
    for turn in [1, 3] {
        let answer = messages[turn]["content"].as_str().expect("text").trim_end();
        assert!(answers.contains(answer), "{answer:?} in {answers:?}");
    }
    let all = [answers.as_bytes(), &text.stderr].concat();
    assert!(!all.contains(&0x1b), "codes for a terminal in a pipe");
    let answers = object["answers"].as_array().expect("answers");
    assert!(
        answers[0]["predicted_tokens"].is_number() && answers[0]["timing"]["ttft_s"].is_number()
    );
    let prompt = |answer: &Value| answer["prompt_tokens"].as_u64().expect("tokens");
    assert!(prompt(&answers[1]) > prompt(&answers[0]), "the second turn has the first before it");
}

#[test]
fn commands_change_the_conversation() {
    let lines = "/system Be brief.\nHi.\n/retry\n";
    let object = talk(&["--seed", "3", "--max-tokens", "8"], lines);
    let messages = object["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 3, "{object}");
    assert_eq!(messages[0], json!({ "role": "system", "content": "Be brief." }));
    assert_eq!(object["answers"].as_array().map(Vec::len), Some(2), "{object}");
    let same = talk(&["--seed", "3", "--max-tokens", "8", "--system", "Be brief."], "Hi.\n/retry");
    assert_eq!(same["messages"], object["messages"], "a seed fixes the conversation");

    let object =
        talk(&GREEDY, "Hi.\n/clear\n/system Be kind.\n/system\n//help\n/exit\nNot read.\n");
    let messages = object["messages"].as_array().expect("messages");
    assert_eq!((messages.len(), &messages[0]["content"]), (2, &json!("/help")));

    let output = chat(&GREEDY, "/help\n/stats\nHi.\n/stats\n");
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    for says in ["/retry", "no answer yet", "tokens/s", "first token", "context", "of 1024 tokens"]
    {
        assert!(errors.contains(says), "{says} in {errors}");
    }
    assert!(!String::from_utf8_lossy(&output.stdout).contains("tokens/s"));
}

#[test]
fn a_conversation_is_saved_and_other_files_are_not_replaced() {
    let (new, mine) = (scratch("new.json"), scratch("mine.json"));
    let save = format!("Hi.\n/save {0}\n/save {0}\n", new.display());
    assert!(chat(&GREEDY, &save).status.success(), "a file of an earlier chat is replaced");
    let saved: Value = serde_json::from_slice(&fs::read(&new).expect("written")).expect("JSON");
    assert_eq!(saved["generator"], "trail-rt chat");
    assert_eq!(saved["messages"][0], json!({ "role": "user", "content": "Hi." }));
    fs::write(&mine, "mine").expect("written");
    let save = format!("/save {}", mine.display());
    assert_refused(&chat(&GREEDY, &save), 2, "--force");
    assert_eq!(fs::read(&mine).expect("text"), b"mine");
    assert!(chat(&GREEDY, &format!("{save} --force")).status.success());
    assert_ne!(fs::read(&mine).expect("text"), b"mine");
    assert_refused(&chat(&GREEDY, "/save /dev/null/x"), 1, "/dev/null/x");
    let missing = scratch("typo").join("x.json");
    let save = format!("/save {}", missing.display());
    assert_refused(&chat(&GREEDY, &save), 2, "there is no folder");
    assert!(!scratch("typo").exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&new).expect("written").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}: others can read the conversation");
    }
}

/// A write beyond `ulimit -f` fails, instead of ending the program by SIGXFSZ.
#[cfg(unix)]
#[test]
fn a_file_beyond_the_limit_of_the_shell_is_an_error() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0 && exec \"$0\" chat --threads 1", PROGRAM]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let save = format!("/save {}\n", scratch("limited.json").display());
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(save.as_bytes()).expect("written");
    drop(stdin);
    assert_refused(&deadline::end(child), 1, "cannot write");
}

#[test]
fn mistakes_are_one_line() {
    for (options, lines, code, says) in [
        (&[][..], "/frob\n", 2, "/help lists"),
        (&[], "/retry\n", 2, "no message"),
        (&[], "/clear now\n", 2, "leave \"now\" out"),
        (&["--stop", ""], "", 2, "stop"),
        (&["--temperature", "-1"], "Hi.\n", 2, "temperature must"),
        (&["--max-model-len", "16"], "Count to ten, please, and then to five.\n", 1, "/clear"),
    ] {
        assert_refused(&chat(options, lines), code, says);
    }
    let mut child = start(&[]);
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"caf\xe9\n").expect("written");
    drop(stdin);
    assert_refused(&deadline::end(child), 2, "UTF-8");
}

#[test]
fn a_model_without_template_is_refused() {
    let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    let folder = scratch("no-template");
    fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(demo.join(file), folder.join(file)).expect("a copy");
    }
    let output = chat(&["--model", folder.to_str().expect("UTF-8")], "Hi.\n");
    assert_refused(&output, 2, "no chat template");
}

#[test]
fn an_answer_ends_where_the_context_does_and_says_so() {
    let output = chat(&["--max-model-len", "48", "--ignore-eos"], "Count to ten.\n");
    assert!(output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("context is full; /clear"), "{errors}");
}

#[test]
fn a_kv_cache_smaller_than_the_context_bounds_the_conversation() {
    // 6 blocks of 16 tokens; the demo model's context has 1024.
    let output = chat(&["--kv-blocks", "6", "--ignore-eos"], "Count to ten.\n/stats\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains("context is full; /clear") && errors.contains("of 96 tokens"),
        "{errors}"
    );
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_chat() {
    let mut child = start(&["--ignore-eos", "--seed", "3"]);
    let _deadline = Deadline::of(child.id());
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    stdin.write_all(b"Tell me a story about a cat.\n").expect("written");
    // The answer has begun.
    stdout.read_exact(&mut [0]).expect("text");
    let pid = child.id().to_string();
    let interrupt = Command::new("kill").args(["-INT", &pid]).status().expect("kill starts");
    assert!(interrupt.success());
    let mut errors = String::new();
    stderr.read_line(&mut errors).expect("a line");
    assert_eq!(errors.trim_end(), "(stopped)");
    stdin.write_all(b"/stats\n/exit\n").expect("written");
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("text");
    errors.clear();
    stderr.read_to_string(&mut errors).expect("text");
    assert!(errors.contains("of 1024 tokens"), "{errors}");
    assert!(child.wait().expect("ended").success());
}
