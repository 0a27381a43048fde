//! Stamps (start and end of a piece of work) by thread, taken while a benchmark runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::SpanKind;

/// Stamps per thread before its list reallocates.
const STAMPS: usize = 1 << 14;

/// A piece of work of a thread or stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The work done.
    pub kind: SpanKind,
    /// Number of the step that the work belongs to.
    pub step: u64,
    /// Start.
    pub begin: Instant,
    /// End.
    pub end: Instant,
}

/// A thread and its stamps.
#[derive(Clone, Debug)]
pub struct Track {
    /// Id of the thread; `None` if it took no stamp and only its name is known.
    pub thread: Option<ThreadId>,
    /// Name of the thread.
    pub name: String,
    /// Stamps in order of time.
    pub stamps: Vec<Stamp>,
}

/// The stamps of one thread.
#[derive(Debug, Default)]
struct ThreadStamps {
    thread: OnceLock<(ThreadId, String)>,
    // While recording only the thread itself locks it.
    stamps: Mutex<Vec<Stamp>>,
}

/// Takes stamps from any thread; threads never wait for one another.
#[derive(Debug)]
pub struct Recorder {
    recording: AtomicBool,
    threads: Box<[ThreadStamps]>,
}

impl Recorder {
    /// A recorder for at most `threads` threads; a further thread's first stamp panics.
    pub fn new(threads: usize) -> Recorder {
        let new = |_| ThreadStamps {
            thread: OnceLock::new(),
            stamps: Mutex::new(Vec::with_capacity(STAMPS)),
        };
        Recorder { recording: AtomicBool::new(false), threads: (0..threads).map(new).collect() }
    }

    /// Starts recording: stamps taken before are not kept.
    pub fn start(&self) {
        self.recording.store(true, Ordering::Release);
    }

    /// Stops recording.
    pub fn stop(&self) {
        self.recording.store(false, Ordering::Release);
    }

    /// True while stamps are kept.
    pub fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    /// Registers the calling thread, so that it has a track even without stamps.
    pub fn register_thread(&self) {
        self.own();
    }

    /// Records work of `kind` from `begin` until now.
    pub fn stamp(&self, kind: SpanKind, step: u64, begin: Instant) {
        self.push(Stamp { kind, step, begin, end: Instant::now() });
    }

    /// Records `stamp` in the calling thread's list, also for work of another thread or stream.
    pub fn push(&self, stamp: Stamp) {
        let own = self.own();
        if self.is_recording() {
            own.stamps.lock().unwrap_or_else(PoisonError::into_inner).push(stamp);
        }
    }

    /// Takes the stamps of all threads, sorted by the threads' names.
    pub fn take(&self) -> Vec<Track> {
        let track = |of: &ThreadStamps| {
            let (id, name) = of.thread.get()?;
            let stamps = std::mem::take(&mut *of.stamps.lock().ok()?);
            Some(Track { thread: Some(*id), name: name.clone(), stamps })
        };
        let mut tracks: Vec<Track> = self.threads.iter().filter_map(track).collect();
        tracks.sort_by(|a, b| a.name.cmp(&b.name));
        tracks
    }

    fn own(&self) -> &ThreadStamps {
        let me = thread::current();
        let mine = |of: &&ThreadStamps| {
            let (id, _) = of.thread.get_or_init(|| {
                let name = me.name().unwrap_or("unnamed");
                (me.id(), name.to_owned())
            });
            *id == me.id()
        };
        self.threads.iter().find(mine).expect("no more threads than the recorder was made for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_track_and_stamps_before_the_start_are_not_kept() {
        let recorder = Recorder::new(3);
        let begin = Instant::now();
        recorder.stamp(SpanKind::Plan, 1, begin);
        recorder.start();
        thread::scope(|scope| {
            for name in ["b", "a"] {
                let stamp = || (0..5).for_each(|step| recorder.stamp(SpanKind::Head, step, begin));
                thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, stamp).unwrap();
            }
        });
        recorder.stop();
        recorder.stamp(SpanKind::Plan, 2, begin);
        let taken = recorder.take();
        let of =
            |name: &str| &taken.iter().find(|track| track.name == name).expect("a track").stamps;
        for name in ["a", "b"] {
            let steps: Vec<u64> = of(name).iter().map(|stamp| stamp.step).collect();
            assert_eq!(steps, [0, 1, 2, 3, 4]);
        }
        assert_eq!(taken.len(), 3);
        assert_eq!(taken.iter().map(|track| track.stamps.len()).sum::<usize>(), 10);
    }
}
