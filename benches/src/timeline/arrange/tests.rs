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
    assert_eq!((timeline.step, timeline.recorded), (3, 1));
    assert_eq!(timeline.step_us.round(), 98.0);
    let begins: Vec<(u64, i64)> =
        timeline.begins.iter().map(|&(step, us)| (step, us.round() as i64)).collect();
    assert_eq!(begins, [(2, -100), (3, 0), (4, 100)]);
    let names: Vec<&str> = timeline.lanes.iter().map(|lane| lane.name.as_str()).collect();
    let threads = ["probe, thread 0", "probe, thread 1", "probe, thread 2"];
    assert_eq!(
        names,
        [&["compute stream", "side stream"], &threads[..], &["engine thread"]].concat()
    );
    // The range that is looked at closely holds all from the copy to the predictions.
    assert!(timeline.zooms[0].range[0] < 41.0 && timeline.zooms[0].range[1] > 59.0);
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
