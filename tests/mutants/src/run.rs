//! One run of a test under the switch, with a limit of time.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::build::Binary;

/// Longest run of a test: a planted bug that needs more is found, as CI would stop too.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MutantOutcome {
    /// This number of tests passed.
    Passed(u64),
    /// The first test that failed, or the way the process ended.
    Failed(String),
    /// Killed at [`LIMIT`].
    TimedOut,
}

/// Runs the tests that match `filters` with bug `number` planted (none for 0), or with the PTX
/// module in the file `ptx`; the output is in the file `log`. Returns the result and the seconds it
/// took.
pub(crate) fn run(
    binary: &Binary,
    filters: &[String],
    (number, ptx): (u32, Option<&Path>),
    log: &Path,
) -> Result<(MutantOutcome, f64), String> {
    let output = File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let errors = output.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
    let _alone = binary.files.as_ref().map(|files| files.lock());
    let begin = Instant::now();
    let child = Command::new(&binary.path)
        .args(filters)
        .current_dir(&binary.folder)
        .env("TRAIL_MUTANT", number.to_string())
        .env("TRAIL_MUTANT_PTX", ptx.unwrap_or(Path::new("")))
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|e| format!("{}: {e}", binary.path.display()))?;
    let ended = wait(&mut child, begin)?;
    let seconds = begin.elapsed().as_secs_f64();
    let text = std::fs::read(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    Ok((if ended { outcome(&mut child, &text)? } else { MutantOutcome::TimedOut }, seconds))
}

/// Waits for the end of `child`; kills it and its children at the limit, and returns false then.
fn wait(child: &mut Child, begin: Instant) -> Result<bool, String> {
    let ended = loop {
        if child.try_wait().map_err(|e| e.to_string())?.is_some() {
            break true;
        }
        if begin.elapsed() > LIMIT {
            break false;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Also after its end: a server that a failed test left behind. No such group is no error.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait().map_err(|e| e.to_string())?;
    Ok(ended)
}

fn outcome(child: &mut Child, text: &str) -> Result<MutantOutcome, String> {
    let status = child.wait().map_err(|e| e.to_string())?;
    if status.success() {
        let count = text.lines().find_map(|line| line.strip_prefix("test result: ok. "));
        let count = count.and_then(|rest| rest.split(' ').next()?.parse().ok());
        return Ok(MutantOutcome::Passed(count.unwrap_or(0)));
    }
    let failed = text.lines().find_map(|line| {
        line.strip_prefix("test ")?.split_once(" ... FAILED").map(|(name, _)| name.to_owned())
    });
    Ok(MutantOutcome::Failed(failed.unwrap_or_else(|| status.to_string())))
}
