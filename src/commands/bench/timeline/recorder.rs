//! Who did what, and when: stamps by thread, taken while a benchmark runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::Kind;

/// Stamps that a thread can take before its list grows.
const STAMPS: usize = 1 << 14;

/// Something that a thread or a stream did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// What.
    pub kind: Kind,
    /// For which step.
    pub step: u64,
    /// Since when.
    pub begin: Instant,
    /// Until when.
    pub end: Instant,
}

/// A thread, and what it stamped.
#[derive(Clone, Debug)]
pub struct Track {
    /// Which; `None` if it stamped nothing, and is known by name alone.
    pub thread: Option<ThreadId>,
    /// Its name.
    pub name: String,
    /// What it stamped, in order of time.
    pub stamps: Vec<Stamp>,
}

/// A thread's place in the recorder.
#[derive(Debug, Default)]
struct Lane {
    thread: OnceLock<(ThreadId, String)>,
    // Locked by its thread alone while stamps are taken.
    stamps: Mutex<Vec<Stamp>>,
}

/// Takes stamps from any thread; none waits for another.
#[derive(Debug)]
pub struct Recorder {
    recording: AtomicBool,
    lanes: Box<[Lane]>,
}

impl Recorder {
    /// For up to `threads` threads; others' stamps would have nowhere to go.
    pub fn new(threads: usize) -> Recorder {
        let lane =
            || Lane { thread: OnceLock::new(), stamps: Mutex::new(Vec::with_capacity(STAMPS)) };
        let lanes = (0..threads).map(|_| lane()).collect();
        Recorder { recording: AtomicBool::new(false), lanes }
    }

    /// From here on stamps count.
    pub fn start(&self) {
        self.recording.store(true, Ordering::Release);
    }

    /// From here on they do not.
    pub fn stop(&self) {
        self.recording.store(false, Ordering::Release);
    }

    /// Gives the calling thread a lane, stamps or not.
    pub fn attend(&self) {
        self.lane();
    }

    /// The calling thread did `kind` from `begin` until now.
    pub fn step_seq(&self, kind: Kind, step: u64, begin: Instant) {
        self.push(Stamp { kind, step, begin, end: Instant::now() });
    }

    /// As it is; the calling thread keeps it, whoever did it.
    pub fn push(&self, step_seq: Stamp) {
        let lane = self.lane();
        if self.recording.load(Ordering::Acquire) {
            lane.stamps.lock().unwrap_or_else(PoisonError::into_inner).push(step_seq);
        }
    }

    /// What was stamped, in order of the threads' names.
    pub fn take(&self) -> Vec<Track> {
        let named = |lane: &Lane| {
            let (id, name) = lane.thread.get()?;
            let stamps = std::mem::take(&mut *lane.stamps.lock().ok()?);
            Some(Track { thread: Some(*id), name: name.clone(), stamps })
        };
        let mut threads: Vec<Track> = self.lanes.iter().filter_map(named).collect();
        threads.sort_by(|a, b| a.name.cmp(&b.name));
        threads
    }

    fn lane(&self) -> &Lane {
        let me = thread::current();
        let mine = |lane: &&Lane| {
            let (id, _) = lane.thread.get_or_init(|| {
                let name = me.name().unwrap_or("unnamed");
                (me.id(), name.to_owned())
            });
            *id == me.id()
        };
        self.lanes.iter().find(mine).expect("a lane for each of the benchmark's threads")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_lane_and_what_was_stamped_before_the_start_does_not_count() {
        let recorder = Recorder::new(3);
        let begin = Instant::now();
        recorder.step_seq(Kind::Plan, 1, begin);
        recorder.start();
        thread::scope(|scope| {
            for name in ["b", "a"] {
                let step_seq =
                    || (0..5).for_each(|step| recorder.step_seq(Kind::Head, step, begin));
                thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, step_seq).unwrap();
            }
        });
        recorder.stop();
        recorder.step_seq(Kind::Plan, 2, begin);
        let taken = recorder.take();
        let of =
            |name: &str| &taken.iter().find(|track| track.name == name).expect("a lane").stamps;
        for name in ["a", "b"] {
            let steps: Vec<u64> = of(name).iter().map(|step_seq| step_seq.step).collect();
            assert_eq!(steps, [0, 1, 2, 3, 4]);
        }
        assert_eq!(taken.len(), 3);
        assert_eq!(taken.iter().map(|track| track.stamps.len()).sum::<usize>(), 10);
    }
}
