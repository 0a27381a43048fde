//! Makes lanes of stamps: selects the step to show, with its neighbours.

use std::time::Instant;

use trail_runtime::engine::Smoothed;

use super::recorder::{Stamp, Track};
use super::{Lane, LaneKind, RunInfo, Span, SpanKind, Timeline};

/// Name prefix of the probe threads of a CUDA backend.
const WAITERS: &str = "trail-tap-";

/// The stamps of a recording.
pub struct Recording {
    /// Tracks sorted by the threads' names.
    pub threads: Vec<Track>,
    /// Thread and time of the smoothing, by step.
    pub smoothed: Vec<(u64, Smoothed)>,
    /// True if a GPU computes the model.
    pub on_device: bool,
}

/// Returns the recorded step of median length, with its neighbours. Fails if no step was recorded
/// with its predictions.
pub fn arrange(recording: Recording, run: RunInfo) -> Result<Timeline, String> {
    let whole = whole_steps(&recording);
    let (step, origin) = middle(&whole).ok_or("no recorded step was predicted from in time")?;
    let at = |when: Instant| match when.checked_duration_since(origin) {
        Some(after) => after.as_secs_f64() * 1e6,
        None => -origin.duration_since(when).as_secs_f64() * 1e6,
    };
    let stamps = || recording.threads.iter().flat_map(|track| &track.stamps);
    let of = |kind, step| stamps().find(move |s| s.kind == kind && s.step == step);
    let end = of(SpanKind::Sampling, step).map_or(0.0, |stamp| at(stamp.end));
    let last = of(SpanKind::Sampling, step + 1).map_or(end, |stamp| at(stamp.end));
    let first = of(SpanKind::Lower, step - 1).map_or(0.0, |stamp| at(stamp.begin));
    let lanes = lanes(&recording, [first, last], at);
    Ok(Timeline { run, step, step_us: end, lanes })
}

/// Steps recorded with both neighbours, their predictions and the next plan: number, start,
/// seconds.
fn whole_steps(recording: &Recording) -> Vec<(u64, Instant, f64)> {
    let stamps = || recording.threads.iter().flat_map(|track| &track.stamps);
    let has = |kind, step| stamps().any(|stamp| stamp.kind == kind && stamp.step == step);
    let whole = stamps().filter(|stamp| stamp.kind == SpanKind::Lower).filter_map(|stamp| {
        let step = stamp.step;
        let is_whole = has(SpanKind::Lower, step - 1)
            && has(SpanKind::Plan, step - 1)
            && has(SpanKind::Sampling, step + 1)
            && has(SpanKind::Launch, step + 1)
            && recording.smoothed.iter().any(|(of, _)| *of == step);
        let end = stamps().find(|s| s.kind == SpanKind::Sampling && s.step == step)?.end;
        is_whole.then(|| (step, stamp.begin, end.duration_since(stamp.begin).as_secs_f64()))
    });
    whole.collect()
}

/// Number and start of the step of median length.
fn middle(whole: &[(u64, Instant, f64)]) -> Option<(u64, Instant)> {
    let mut sorted: Vec<_> = whole.iter().collect();
    sorted.sort_by(|a, b| a.2.total_cmp(&b.2));
    sorted.get(sorted.len() / 2).map(|(step, begin, _)| (*step, *begin))
}

/// All lanes with their spans that overlap `shown`.
fn lanes(recording: &Recording, shown: [f64; 2], at: impl Fn(Instant) -> f64) -> Vec<Lane> {
    let span = |stamp: &Stamp| Span {
        kind: stamp.kind,
        step: stamp.step,
        begin: at(stamp.begin),
        end: at(stamp.end),
    };
    let meets = |span: &Span| span.end > shown[0] && span.begin < shown[1];
    let lane = |name: &str, on_device, mut spans: Vec<Span>| {
        spans.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        spans.retain(meets);
        Lane { name: name.to_owned(), on_device, spans }
    };
    let placed = |place| -> Vec<Span> {
        let stamps = recording.threads.iter().flat_map(|track| &track.stamps);
        stamps.filter(|stamp| stamp.kind.lane() == place).map(span).collect()
    };
    let on_device = recording.on_device;
    let [compute, side] = match on_device {
        true => ["compute stream", "side stream"],
        false => ["forward pass", "tap"],
    };
    let mut lanes = vec![
        lane(compute, on_device, placed(LaneKind::Compute)),
        lane(side, on_device, placed(LaneKind::Side)),
    ];
    for track in &recording.threads {
        let is_waiter = track.name.starts_with(WAITERS);
        // Selected by thread: a thread that was descheduled before its stamp may seem to contain
        // the smoothing of another.
        let own = recording.smoothed.iter().filter(|(_, by)| Some(by.thread) == track.thread);
        let smoothed: Vec<Span> = own
            .map(|(step, by)| {
                let (begin, end) = (at(by.begun), at(by.published));
                Span { kind: SpanKind::Smooth, step: *step, begin, end }
            })
            .collect();
        let spans =
            track.stamps.iter().filter(|stamp| stamp.kind.lane() == LaneKind::Thread).map(span);
        let mut spans: Vec<Span> = spans.flat_map(|span| divide(span, &smoothed)).collect();
        if is_waiter {
            fill_gaps(&mut spans, shown);
        } else if on_device {
            // With a GPU, the engine's thread runs no head tasks.
            continue;
        }
        lanes.push(lane(&thread_name(&track.name), false, spans));
    }
    lanes.push(lane("engine thread", false, placed(LaneKind::Engine)));
    lanes
}

/// Name of a thread in the trace.
fn thread_name(thread: &str) -> String {
    let number = thread.rsplit_once('-').and_then(|(_, number)| number.parse::<usize>().ok());
    match number {
        Some(number) => format!("probe, thread {number}"),
        None => "probe, engine thread".to_owned(),
    }
}

/// Splits a span of head tasks whose last one smoothed into the tasks and the smoothing.
fn divide(span: Span, smoothed: &[Span]) -> Vec<Span> {
    let inside = |smooth: &&Span| span.begin <= smooth.begin && smooth.end <= span.end;
    match smoothed.iter().find(inside).filter(|_| span.kind == SpanKind::Head) {
        Some(&smooth) => vec![Span { end: smooth.begin, ..span }, smooth],
        None => vec![span],
    }
}

/// Fills the gaps between spans with waiting: a probe thread does nothing else.
fn fill_gaps(spans: &mut Vec<Span>, shown: [f64; 2]) {
    spans.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    let begins = spans.iter().map(|span| (span.begin, span.step));
    let ends = spans.iter().map(|span| span.end);
    let until = begins.chain([(shown[1], spans.last().map_or(0, |span| span.step + 1))]);
    let since = std::iter::once(shown[0]).chain(ends);
    let waits: Vec<Span> = since
        .zip(until)
        .filter(|(begin, (end, _))| begin < end)
        .map(|(begin, (end, step))| Span { kind: SpanKind::Wait, step, begin, end })
        .collect();
    spans.extend(waits);
}

#[cfg(test)]
pub(super) mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Four steps of 100 us on a device; the lanes' times from a step's begin are those below.
    pub(crate) fn example() -> Timeline {
        arrange(recording(), run()).expect("whole steps")
    }

    fn run() -> RunInfo {
        RunInfo {
            model: "example".into(),
            device: "device <0>".into(),
            batch: 3,
            waiting: 6,
            context: 17,
            notes: vec!["A note.".into()],
            clock_error_us: Some(2.0),
        }
    }

    fn recording() -> Recording {
        let start = Instant::now();
        let when = |step: u64, us: u64| start + Duration::from_micros(step * 100 + us);
        let stamps = |spans: &[(SpanKind, u64, u64)]| -> Vec<Stamp> {
            (1..=4)
                .flat_map(|step| {
                    spans.iter().map(move |&(kind, begin, end)| Stamp {
                        kind,
                        step,
                        begin: when(step, begin),
                        end: when(step, end),
                    })
                })
                .collect()
        };
        let mut engine = stamps(&[
            (SpanKind::Lower, 0, 40),
            (SpanKind::Copy, 41, 45),
            (SpanKind::Upper, 40, 90),
            (SpanKind::Sampling, 90, 98),
            (SpanKind::Await, 20, 62),
            (SpanKind::Collect, 71, 99),
        ]);
        // The next step's.
        let next = stamps(&[(SpanKind::Plan, 63, 65), (SpanKind::Launch, 66, 70)]);
        engine.extend(next.into_iter().map(|stamp| Stamp { step: stamp.step + 1, ..stamp }));
        let lead = stamps(&[(SpanKind::Stage, 46, 48), (SpanKind::Head, 49, 60)]);
        // Put aside before it stamped the end of its last task.
        let late = stamps(&[(SpanKind::Head, 50, 61)]);
        let me = thread::current().id();
        let by = |step| Smoothed { thread: me, begun: when(step, 57), published: when(step, 59) };
        let smoothed = (1..=4).map(|step| (step, by(step))).collect();
        let track = |thread, name: &str, stamps| Track { thread, name: name.to_owned(), stamps };
        let threads = vec![
            track(None, "main", engine),
            track(Some(me), "trail-tap-0", lead),
            track(None, "trail-tap-1", Vec::new()),
            track(None, "trail-tap-2", late),
        ];
        Recording { threads, smoothed, on_device: true }
    }

    fn times(lane: &Lane, step: u64) -> Vec<(SpanKind, i64, i64)> {
        let of = lane.spans.iter().filter(|span| span.step == step);
        of.map(|span| (span.kind, span.begin.round() as i64, span.end.round() as i64)).collect()
    }

    #[test]
    fn a_step_with_both_neighbours_is_shown_from_its_own_begin() {
        let timeline = example();
        assert_eq!(timeline.step, 3);
        assert_eq!(timeline.step_us.round(), 98.0);
        let lower = timeline.lanes[0].spans.iter().filter(|span| span.kind == SpanKind::Lower);
        let begins: Vec<(u64, i64)> =
            lower.map(|span| (span.step, span.begin.round() as i64)).collect();
        assert_eq!(begins, [(2, -100), (3, 0), (4, 100)]);
        let names: Vec<&str> = timeline.lanes.iter().map(|lane| lane.name.as_str()).collect();
        let threads = ["probe, thread 0", "probe, thread 1", "probe, thread 2"];
        assert_eq!(
            names,
            [&["compute stream", "side stream"], &threads[..], &["engine thread"]].concat()
        );
    }

    #[test]
    fn smoothing_is_split_from_the_tasks_and_gaps_are_waiting() {
        let timeline = example();
        let lead = times(&timeline.lanes[2], 3);
        let expected = [
            (SpanKind::Wait, -41, 46),
            (SpanKind::Stage, 46, 48),
            (SpanKind::Wait, 48, 49),
            (SpanKind::Head, 49, 57),
            (SpanKind::Smooth, 57, 59),
        ];
        assert_eq!(lead, expected);
        let late: Vec<_> = times(&timeline.lanes[4], 3);
        assert_eq!(late, [(SpanKind::Wait, -39, 50), (SpanKind::Head, 50, 61)]);
        // A thread that got no task waited all along.
        assert!(timeline.lanes[3].spans.iter().all(|span| span.kind == SpanKind::Wait));
        assert_eq!(timeline.lanes[3].spans.len(), 1);
    }

    #[test]
    fn without_predictions_there_is_nothing_to_show() {
        let recording = Recording { smoothed: Vec::new(), ..recording() };
        assert!(arrange(recording, run()).is_err());
    }
}
