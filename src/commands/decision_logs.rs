//! The decision logs of `--record`: one for each engine of a server, none in place of another.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use trail_cli::{Error, LogFile, OutputFile, notice};

/// Decision logs of one model, or of a proxy.
pub struct DecisionLogs {
    path: PathBuf,
    replaces: bool,
    /// Numbers given away so far.
    last: AtomicU32,
}

impl DecisionLogs {
    /// Logs at `path`; `replaces` what is there.
    pub fn new(path: PathBuf, replaces: bool) -> DecisionLogs {
        DecisionLogs { path, replaces, last: AtomicU32::new(0) }
    }

    /// The file of the next engine: log.jsonl, then log+2.jsonl; of one of several models
    /// log-NAME.jsonl. Logs stay that have more than a header, or that a process writes.
    pub fn next(&self, name: Option<&str>) -> Result<OutputFile, Error> {
        let mut kept = false;
        loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            let path = log_path(&self.path, name, number);
            let is_log = || OutputFile::has_entries(&path) || LogFile::is_written(&path);
            if !self.replaces && is_log() {
                kept = true;
                continue;
            }
            if kept {
                notice(format_args!("the decision log is {}: earlier ones stay", path.display()));
            }
            return OutputFile::claim(path, self.replaces);
        }
    }
}

fn log_path(path: &Path, name: Option<&str>, number: u32) -> PathBuf {
    let mut file: OsString = path.file_stem().unwrap_or_default().to_owned();
    if let Some(name) = name {
        // Windows has no colon in names of files.
        file.push(format!("-{}", name.replace(':', "%3A")));
    }
    if number > 1 {
        // No name of a model has a plus.
        file.push(format!("+{number}"));
    }
    if let Some(extension) = path.extension() {
        file.push(".");
        file.push(extension);
    }
    path.with_file_name(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_named_by_model_and_engine() {
        let path = Path::new("logs/decisions.jsonl");
        for (name, number, expected) in [
            (None, 1, "logs/decisions.jsonl"),
            (None, 2, "logs/decisions+2.jsonl"),
            (Some("a"), 1, "logs/decisions-a.jsonl"),
            (Some("llama:8b"), 3, "logs/decisions-llama%3A8b+3.jsonl"),
        ] {
            assert_eq!(log_path(path, name, number), Path::new(expected));
        }
        assert_eq!(log_path(Path::new("log"), Some("a"), 1), Path::new("log-a"));
    }

    #[test]
    fn logs_of_earlier_runs_stay() {
        let folder = std::env::temp_dir().join(format!("trail-logs-{}", std::process::id()));
        let path = folder.join("log.jsonl");
        let header = "{\"generator\":\"trail-rt 1\"}\n";
        let run = |replaces, text: &str| {
            let logs = DecisionLogs::new(path.clone(), replaces);
            [1, 2].map(|_| {
                let file = logs.next(None).expect("a free name");
                file.write(text).expect("written");
                file.path().strip_prefix(&folder).expect("within").display().to_string()
            })
        };
        let whole = format!("{header}{{\"submit\":{{}}}}\n");
        // A start that fails leaves a header.
        assert_eq!(run(false, header), ["log.jsonl", "log+2.jsonl"]);
        assert_eq!(run(false, &whole), ["log.jsonl", "log+2.jsonl"]);
        assert_eq!(run(false, &whole), ["log+3.jsonl", "log+4.jsonl"]);
        assert_eq!(run(true, &whole), ["log.jsonl", "log+2.jsonl"]);
        std::fs::write(&path, "mine").expect("written");
        let error = DecisionLogs::new(path.clone(), false).next(None).expect_err("of others");
        assert!(error.to_string().contains("--force"), "{error}");
        std::fs::remove_dir_all(folder).expect("the test's own folder");
    }
}
