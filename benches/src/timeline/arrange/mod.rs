//! Makes a timeline of stamps: selects the step to show, with parts of its neighbours.

use std::time::Instant;

use trail_runtime::engine::Smoothed;

use super::recorder::{Stamp, Track};
use super::{Lane, LaneKind, RunInfo, Span, SpanKind, Timeline, Zoom};

/// Shown part of each neighbour, as a share of the step.
const NEIGHBOUR: f64 = 0.35;
/// Margin on each side of a magnified interval, as a share of it.
const MARGIN: f64 = 0.12;
/// Magnified part of a launch, as a multiple of the plan's length.
const LAUNCH: f64 = 2.0;
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
    let recorded = whole.len();
    let (step, origin) = middle(&whole).ok_or("no recorded step was predicted from in time")?;
    let at = |when: Instant| match when.checked_duration_since(origin) {
        Some(after) => after.as_secs_f64() * 1e6,
        None => -origin.duration_since(when).as_secs_f64() * 1e6,
    };
    let stamps = || recording.threads.iter().flat_map(|track| &track.stamps);
    let of = |kind, step| stamps().find(move |s| s.kind == kind && s.step == step);
    let begins: Vec<(u64, f64)> = [step - 1, step, step + 1]
        .into_iter()
        .filter_map(|step| Some((step, at(of(SpanKind::Lower, step)?.begin))))
        .collect();
    let end = of(SpanKind::Sampling, step).map_or(0.0, |stamp| at(stamp.end));
    let last = of(SpanKind::Sampling, step + 1).map_or(end, |stamp| at(stamp.end));
    let shown = [begins.first().map_or(0.0, |&(_, begin)| begin), last];
    let lanes = lanes(&recording, shown, at);
    let begin_of = |kind, step| of(kind, step).map(|stamp| at(stamp.begin));
    let tapped = begin_of(SpanKind::Probe, step).or(begin_of(SpanKind::Copy, step));
    let published = recording.smoothed.iter().find(|(of, _)| *of == step);
    let planned = of(SpanKind::Plan, step + 1).map(|stamp| [at(stamp.begin), at(stamp.end)]);
    // A launch kernel by kernel is so long that the plan before it would be too narrow to see.
    let launched = of(SpanKind::Launch, step + 1)
        .zip(planned)
        .map(|(stamp, [begin, end])| at(stamp.end).min(end + LAUNCH * (end - begin)));
    let zoom = |title, from: Option<f64>, to: Option<f64>| {
        let (from, to) = (from?, to?);
        let margin = MARGIN * (to - from);
        Some(Zoom { title, range: [from - margin, to + margin] })
    };
    let zooms = [
        zoom(
            "from the tapped layer to the predictions",
            tapped,
            published.map(|(_, smoothed)| at(smoothed.published)),
        ),
        zoom("the next step's plan and launch", planned.map(|[begin, _]| begin), launched),
    ];
    let mut zooms: Vec<Zoom> = zooms.into_iter().flatten().collect();
    zooms.sort_by(|a, b| a.range[0].total_cmp(&b.range[0]));
    let mut range = [-NEIGHBOUR * end, (1.0 + NEIGHBOUR) * end];
    for zoom in &zooms {
        range = [range[0].min(zoom.range[0]), range[1].max(zoom.range[1])];
    }
    Ok(Timeline { run, step, recorded, step_us: end, begins, lanes, range, zooms })
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

/// Name of a thread in the picture.
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
pub(super) mod tests;
