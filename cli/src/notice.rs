//! Lines for the person at the terminal.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Error;
use crate::log_line;

/// Lines that wait for a reader of stderr.
const MAX_WAITING: usize = 1024;
/// Interval of tries to flush a full queue.
const FLUSH_RETRY: Duration = Duration::from_millis(10);

/// A line, or the request for an answer once the lines before it are written.
enum Entry {
    Line(String),
    Flush(Sender<()>),
}

static QUEUE: OnceLock<SyncSender<Entry>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Writes one line to stderr. Names, paths and messages of others may be in it: control characters
/// are escaped, line feeds too. Unlike `eprintln!` it does not panic when stderr is closed: a
/// missing reader is no reason to stop. After [`queue_notices`] it does not wait for the reader
/// either. A line that begins with `warning: ` or `error: ` has that level, others are information;
/// [`LogSettings`](crate::LogSettings) leave lines out, or write them as JSON.
pub fn notice(line: impl Display) {
    log_line::of_line(&line.to_string()).into_iter().for_each(queue);
}

/// Writes a record like [`notice`]: `text`, or where lines are JSON `message` with `fields`, which
/// serialize to an object.
pub fn log_record(text: impl Display, message: &str, fields: &impl Serialize) {
    log_line::of_record(&text, message, fields).into_iter().for_each(queue);
}

fn queue(line: String) {
    match QUEUE.get() {
        None => write(line),
        Some(queue) => match queue.try_send(Entry::Line(line)) {
            Err(TrySendError::Full(_)) => drop(DROPPED.fetch_add(1, Ordering::Relaxed)),
            Err(TrySendError::Disconnected(Entry::Line(line))) => write(line),
            Ok(()) | Err(TrySendError::Disconnected(Entry::Flush(_))) => {}
        },
    }
}

/// Lets a thread write the lines from now on. Beyond 1024, lines that wait for a reader
/// of stderr (a full pipe, a stopped pager) are dropped and counted.
pub fn queue_notices() -> Result<(), Error> {
    let (queue, entries) = sync_channel(MAX_WAITING);
    if QUEUE.set(queue).is_ok() {
        let writer = thread::Builder::new().name("trail-notices".into());
        let started = writer.spawn(move || write_all(&entries));
        started.map_err(|error| Error::failed(format!("cannot start a thread: {error}")))?;
    }
    Ok(())
}

/// Number of lines that were dropped.
pub fn dropped_notices() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Waits until the lines so far are written, for `limit` at most.
pub fn flush_notices(limit: Duration) {
    let Some(queue) = QUEUE.get() else { return };
    let (written, answer) = channel();
    let deadline = Instant::now() + limit;
    let mut entry = Entry::Flush(written);
    while let Err(TrySendError::Full(back)) = queue.try_send(entry) {
        if Instant::now() > deadline {
            return;
        }
        entry = back;
        thread::sleep(FLUSH_RETRY);
    }
    let _ = answer.recv_timeout(deadline.saturating_duration_since(Instant::now()));
}

fn write_all(entries: &Receiver<Entry>) {
    let mut reported = 0;
    for entry in entries {
        let flushed = match entry {
            Entry::Line(line) => {
                write(line);
                None
            }
            Entry::Flush(written) => Some(written),
        };
        let dropped = dropped_notices();
        if dropped > reported {
            let line = format!("warning: {} lines were dropped here", dropped - reported);
            log_line::of_line(&line).into_iter().for_each(write);
            reported = dropped;
        }
        if let Some(written) = flushed {
            let _ = written.send(());
        }
    }
}

/// Writes a line at once: other processes may write to the same log.
fn write(mut line: String) {
    line.push('\n');
    let _ = std::io::stderr().write_all(line.as_bytes());
}
