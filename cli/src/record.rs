//! Decision logs as files.

use std::fs::{File, TryLockError};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use trail_scheduler::log::LogEvent;
use trail_scheduler::{LogHeader, LogSink};

use crate::error::Error;
use crate::notice::notice;
use crate::output_file::OutputFile;

/// Events between the engine and the writer: seconds of a busy engine, 32 MiB.
const CAPACITY: usize = 1 << 18;

/// Interval at which the writer looks for events, and the most that a crash loses. A waiting writer
/// would cost the engine a wake-up per step.
const POLL: Duration = Duration::from_millis(10);

/// Bytes between two writes to the file.
const BUFFER_BYTES: usize = 1 << 18;

/// Writes a decision log on its own thread: a step puts its events into a queue that exists
/// already, and waits for nothing.
///
/// An error, or a disk that stays behind by the whole queue, ends the log with one line on stderr;
/// the engine goes on.
pub struct LogFile {
    name: String,
    /// `None` once the log has ended.
    events: Option<SyncSender<Item>>,
    writer: Option<JoinHandle<()>>,
}

/// A line.
enum Item {
    Header(LogHeader),
    Event(LogEvent),
}

impl LogFile {
    /// Begins a log in `file`, which is emptied. An error, and the file as it was, if another
    /// process writes its log there.
    pub fn create(file: &OutputFile) -> Result<LogFile, Error> {
        let name = file.path().display().to_string();
        let failed = |error| Error::failed(format!("cannot write {name}: {error}"));
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(false).open(file.path());
        let to = opened.map_err(failed)?;
        if to.metadata().is_ok_and(|metadata| metadata.is_file()) {
            if is_locked(&to) {
                return Err(Error::usage(format!(
                    "{name} is the log of another process that still runs: choose another path"
                )));
            }
            to.set_len(0).map_err(failed)?;
        }
        LogFile::begin(name, to)
    }

    /// Returns true if another process writes its log at `path`.
    pub fn is_written(path: &Path) -> bool {
        path.is_file() && File::open(path).is_ok_and(|file| is_locked(&file))
    }

    fn begin(name: String, to: impl Write + Send + 'static) -> Result<LogFile, Error> {
        let (events, queue) = sync_channel(CAPACITY);
        let name_of_thread = name.clone();
        let write = move || {
            if let Err(error) = write(&queue, to) {
                notice(format_args!(
                    "warning: cannot write {name_of_thread}: {error}; the decision log ends"
                ));
            }
        };
        let spawned = std::thread::Builder::new().name("trail-log".into()).spawn(write);
        let writer = spawned
            .map_err(|error| Error::failed(format!("cannot start the log's thread: {error}")))?;
        Ok(LogFile { name, events: Some(events), writer: Some(writer) })
    }

    fn push(&mut self, item: Item) {
        let Some(events) = &self.events else { return };
        match events.try_send(item) {
            Ok(()) => {}
            // The writer has failed, and reported it.
            Err(TrySendError::Disconnected(_)) => self.events = None,
            Err(TrySendError::Full(_)) => {
                let name = &self.name;
                notice(format_args!("warning: {name} is too slow; the decision log ends"));
                self.events = None;
            }
        }
    }
}

/// Locks `file` until it is closed; true if another process has locked it. Not on Windows, which
/// refuses reads of a locked file to others: `advise` reads the log of a server.
fn is_locked(file: &File) -> bool {
    cfg!(unix) && matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

impl LogSink for LogFile {
    fn begin(&mut self, header: &LogHeader) {
        self.push(Item::Header(*header));
    }

    fn event(&mut self, event: &LogEvent) {
        self.push(Item::Event(*event));
    }
}

impl Drop for LogFile {
    /// Waits until the queue is written.
    fn drop(&mut self) {
        self.events = None;
        if let Some(writer) = self.writer.take() {
            // A panic was reported by the panic hook.
            let _ = writer.join();
        }
    }
}

/// Writes the lines of `queue` until its sender is gone. The file ends with a whole line whenever
/// the queue was empty.
fn write(queue: &Receiver<Item>, to: impl Write) -> std::io::Result<()> {
    let mut to = BufWriter::with_capacity(BUFFER_BYTES, to);
    loop {
        match queue.try_recv() {
            Ok(Item::Header(header)) => writeln!(to, "{}", header.line())?,
            Ok(Item::Event(event)) => writeln!(to, "{}", event.line())?,
            Err(TryRecvError::Empty) => {
                to.flush()?;
                std::thread::sleep(POLL);
            }
            Err(TryRecvError::Disconnected) => return to.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use trail_scheduler::SchedulerConfig;
    use trail_scheduler::log::DecisionLog;
    use trail_scheduler::policies::PolicyKind;

    use super::*;

    fn header() -> LogHeader {
        let (config, policy) = (SchedulerConfig::default(), PolicyKind::trail(0.5));
        LogHeader { config, policy, max_gap_s: 0.3 }
    }

    #[test]
    fn a_log_is_written_whole_and_is_a_result_that_a_later_run_replaces() {
        let folder = std::env::temp_dir().join(format!("trail-log-file-{}", std::process::id()));
        let path = folder.join("log.jsonl");
        for _ in 0..2 {
            let file = OutputFile::claim(path.clone(), false).expect("no foreign file");
            let mut log = LogFile::create(&file).expect("created");
            log.begin(&header());
            (1..=5000).for_each(|step| log.event(&LogEvent::Advance { step }));
            drop(log);
            let text = std::fs::read_to_string(&path).expect("text");
            let log = DecisionLog::parse(&text).expect("whole");
            assert_eq!((log.header, log.events.len()), (header(), 5000));
        }
        std::fs::remove_dir_all(folder).expect("the test's own folder");
    }

    #[cfg(unix)]
    #[test]
    fn the_log_of_another_writer_is_left_alone() {
        let path = std::env::temp_dir().join(format!("trail-log-lock-{}", std::process::id()));
        let file = OutputFile::claim(path.clone(), false).expect("no foreign file");
        let mut log = LogFile::create(&file).expect("created");
        log.begin(&header());
        assert!(LogFile::is_written(&path));
        let error = LogFile::create(&file).err().expect("a refusal");
        assert!(error.to_string().contains("another process"), "{error}");
        drop(log);
        let text = std::fs::read_to_string(&path).expect("text");
        assert_eq!(DecisionLog::parse(&text).expect("whole").header, header());
        LogFile::create(&file).expect("its writer has ended");
        std::fs::remove_file(path).expect("the test's own file");
    }

    /// A disk of 1000 bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            match self.0 > 1000 {
                true => Err(std::io::Error::other("no space left")),
                false => Ok(bytes.len()),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_ends_the_log_and_nothing_else() {
        let mut log = LogFile::begin("full".into(), Full(0)).expect("begun");
        log.begin(&header());
        let begin = Instant::now();
        while log.events.is_some() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the error is not seen");
            log.event(&LogEvent::Advance { step: 1 });
            std::thread::yield_now();
        }
        log.event(&LogEvent::Advance { step: 2 });
    }
}
