//! `trail-rt doctor --gpu`: the checks of a GPU, each in its own process with a time limit,
//! so that a kernel that hangs or breaks the context takes no other check along.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trail_bench::{GPU_CHECKS, GpuCheck};
use trail_cli::{Error, Output};
use trail_platform::printable_line;

/// Pause between two looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time in which a killed process ends, unless it is inside of a driver call that never returns.
const DEATH: Duration = Duration::from_secs(5);

/// Runs all checks, with `factor` times their limits, and prints a line for each, as JSON objects
/// if `json`.
pub fn run(factor: u32, json: bool) -> Result<(), Error> {
    let mut output = Output::stdout();
    let mut failed = Vec::new();
    for check in GPU_CHECKS {
        let outcome = Outcome::of(check, factor)?;
        output.line(&outcome.line(json))?;
        if outcome.error.is_none() {
            continue;
        }
        failed.push(check.name);
        // Without these two nothing else works.
        if ["driver", "canary"].contains(&check.name) {
            break;
        }
        let canary = GPU_CHECKS.iter().find(|check| check.name == "canary");
        let Some(&canary) = canary else { continue };
        let after = Outcome { name: "canary after it", ..Outcome::of(canary, factor)? };
        output.line(&after.line(json))?;
        if after.error.is_some() {
            break;
        }
    }
    match failed[..] {
        [] => Ok(()),
        ["driver"] => Err(Error::failed("no GPU to check: the line above says why")),
        _ => Err(Error::failed(format!(
            "the GPU does not pass: {}; these lines belong in a report of it",
            failed.join(", ")
        ))),
    }
}

/// A check that has ended, or was ended.
struct Outcome {
    name: &'static str,
    elapsed: Duration,
    /// The check's own object.
    found: Value,
    /// The line that says why it failed.
    error: Option<String>,
}

impl Outcome {
    fn of(check: GpuCheck, factor: u32) -> Result<Outcome, Error> {
        let (begin, limit) = (Instant::now(), check.limit_s * u64::from(factor));
        let mut child = start(check.name)
            .map_err(|error| Error::failed(format!("starting a check of the GPU: {error}")))?;
        let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let status = wait(&mut child, Duration::from_secs(limit));
        let elapsed = begin.elapsed();
        let outcome = |found, error| Ok(Outcome { name: check.name, elapsed, found, error });
        let Some(status) = status else {
            let error = match kill(&mut child) {
                true => format!("no end within {limit} s"),
                false => format!("no end within {limit} s, and it cannot be killed"),
            };
            return outcome(Value::Null, Some(error));
        };
        let (stdout, stderr) = (text(stdout), text(stderr));
        match (status.success(), serde_json::from_str(&stdout)) {
            (true, Ok(found)) => outcome(found, None),
            _ => {
                let line = stderr.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
                let line = line.strip_prefix("error: ").unwrap_or(line);
                let signal = status.code().is_none().then(|| format!("it ended by {status}"));
                let parts: Vec<String> =
                    signal.into_iter().chain((!line.is_empty()).then(|| line.to_owned())).collect();
                let error = match parts.is_empty() {
                    true => "it ended without a word".to_owned(),
                    false => parts.join("; "),
                };
                outcome(Value::Null, Some(error))
            }
        }
    }

    fn line(&self, json: bool) -> String {
        let Outcome { name, elapsed, found, error } = self;
        let seconds = elapsed.as_secs_f64();
        if json {
            let status = if error.is_none() { "ok" } else { "failed" };
            return json!({
                "check": name, "status": status, "seconds": seconds, "found": found,
                "error": error,
            })
            .to_string();
        }
        let details = match (error, found.as_object()) {
            (Some(error), _) => error.clone(),
            (None, Some(found)) => {
                let shown = |value: &Value| match value {
                    Value::String(text) => text.clone(),
                    Value::Array(values) => values.len().to_string(),
                    other => other.to_string(),
                };
                let pairs: Vec<String> = found
                    .iter()
                    .map(|(key, value)| format!("{} {}", key.replace('_', " "), shown(value)))
                    .collect();
                pairs.join(", ")
            }
            (None, None) => String::new(),
        };
        let status = if error.is_none() { "ok" } else { "FAILED" };
        printable_line(format!("{name:<15} {status:<6} {seconds:6.2} s  {details}").trim_end())
            .to_string()
    }
}

/// This program with the same options, for one check.
fn start(name: &str) -> std::io::Result<Child> {
    let given = std::env::args_os().skip(1);
    let arguments: Vec<OsString> = given.filter(|argument| argument != "--gpu").collect();
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .args(["--gpu-check", name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Reads all of `pipe` beside the wait, as a full pipe would block its writer.
fn collect<R: Read + Send + 'static>(pipe: Option<R>) -> Option<JoinHandle<String>> {
    pipe.map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // Text read before an error is still worth printing.
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    })
}

fn text(reader: Option<JoinHandle<String>>) -> String {
    reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
}

/// The status of `child`; `None` if it has not ended within `limit`.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            // An error of the wait itself does not come: the child is this process's own.
            Ok(None) | Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
    None
}

/// Kills `child`; false if it outlives that.
fn kill(child: &mut Child) -> bool {
    // An error means that it has just ended.
    let _ = child.kill();
    wait(child, DEATH).is_some()
}
