//! The timeline as an SVG picture: the step between its neighbours, and below it two magnified
//! intervals, all with the same lanes.

mod panel;
mod svg;

use panel::Panel;
use svg::{Anchor, Svg, width_of};

use super::{SpanKind, Timeline};

/// Width of the picture, left and right end of the lanes, pixels.
const WIDTH: f64 = 1000.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 984.0;
/// Distance between the two magnified intervals, pixels.
const GUTTER: f64 = 34.0;
/// Heights of a line of the legend and of a note, pixels.
const LEGEND: f64 = 20.0;
const NOTE: f64 = 17.0;
const LEGEND_COLUMNS: usize = 3;
const MARGIN: f64 = 16.0;

const INK: &str = "#222222";
const FAINT: &str = "#666666";

/// Colour of a kind of span: light enough for dark text, and distinguishable by colour-blind
/// readers (after the palette of Okabe and Ito).
fn colour(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Lower => "#8fc3e8",
        SpanKind::Upper => "#5fa8d8",
        SpanKind::Sampling => "#b9a6d9",
        SpanKind::Probe => "#f2b8d2",
        SpanKind::Copy => "#e69f00",
        SpanKind::Wait => "#ececec",
        SpanKind::Stage => "#f0e07a",
        SpanKind::Head => "#6cc5a8",
        SpanKind::Smooth => "#e08a5b",
        SpanKind::Await => "#dfe6ee",
        SpanKind::Plan => "#e0684a",
        SpanKind::Launch => "#c9a46a",
        SpanKind::Share => "#d8e8d0",
        SpanKind::Collect => "#b8c4cc",
        SpanKind::Send => "#cdb8a4",
    }
}

/// Draws the timeline.
pub fn draw(timeline: &Timeline) -> String {
    let mut svg = Svg::default();
    let run = &timeline.run;
    let title = format!(
        "One decode step of {}: {} requests, {} more waiting, prompts of {} tokens",
        run.model, run.batch, run.waiting, run.context
    );
    svg.text([MARGIN, 28.0], Anchor::Start, fitting(17.0, &title), INK, &title);
    let subtitle = format!(
        "{}; step {}, {} \u{b5}s, the median of {} recorded steps",
        run.device,
        timeline.step,
        microseconds(timeline.step_us),
        timeline.recorded
    );
    svg.text([MARGIN, 48.0], Anchor::Start, fitting(13.0, &subtitle), FAINT, &subtitle);
    let whole = Panel { left: LEFT, right: RIGHT, top: 66.0, range: timeline.range };
    whole.headings(&mut svg, timeline);
    let mut bottom = whole.draw(&mut svg, timeline, true);
    let zooms = &timeline.zooms;
    let width = (RIGHT - LEFT - GUTTER) / 2.0;
    let top = bottom + 12.0;
    for (index, zoom) in zooms.iter().enumerate() {
        let left = LEFT + index as f64 * (width + GUTTER);
        let panel = Panel { left, right: left + width, top, range: zoom.range };
        panel.title(&mut svg, index, zoom);
        bottom = panel.draw(&mut svg, timeline, index == 0);
    }
    bottom = legend(&mut svg, timeline, bottom + 28.0);
    for note in notes(timeline) {
        bottom += NOTE;
        svg.text([MARGIN, bottom], Anchor::Start, fitting(12.0, &note), FAINT, &note);
    }
    svg.finish(WIDTH, bottom + MARGIN)
}

/// Draws each colour with its name and its time in the step. Returns the lower end, pixels.
fn legend(svg: &mut Svg, timeline: &Timeline, top: f64) -> f64 {
    let spans = || timeline.lanes.iter().flat_map(|lane| &lane.spans);
    let mut kinds: Vec<SpanKind> = spans().map(|span| span.kind).collect();
    kinds.sort();
    kinds.dedup();
    let width = (RIGHT - MARGIN) / LEGEND_COLUMNS as f64;
    let lines = kinds.len().div_ceil(LEGEND_COLUMNS);
    for (index, &kind) in kinds.iter().enumerate() {
        let x = MARGIN + (index / lines) as f64 * width;
        let y = top + (index % lines) as f64 * LEGEND;
        svg.rect([x, y - 11.0], [16.0, 13.0], colour(kind), None);
        let of_step = spans().filter(|span| span.kind == kind && span.step == timeline.step);
        let total: f64 = of_step.map(|span| span.end - span.begin).sum();
        let text = match kind {
            // Waiting lasts from one step's work to the next one's and belongs to neither.
            SpanKind::Wait => kind.name().to_owned(),
            _ => format!("{}: {} \u{b5}s", kind.name(), microseconds(total)),
        };
        svg.text([x + 24.0, y], Anchor::Start, 13.0, INK, &text);
    }
    top + (lines.max(1) - 1) as f64 * LEGEND + 12.0
}

/// Font size, at most `size`, at which `text` fits in a line.
fn fitting(size: f64, text: &str) -> f64 {
    size.min(size * (WIDTH - 2.0 * MARGIN) / width_of(text, size))
}

fn notes(timeline: &Timeline) -> Vec<String> {
    let mut notes = vec![format!(
        "Times are of step {}, summed over threads. Spans shorter than a pixel are drawn one pixel wide.",
        timeline.step
    )];
    notes.extend(timeline.run.notes.iter().cloned());
    notes
}

/// A time with separators at thousands and about three significant digits.
fn microseconds(us: f64) -> String {
    match us.abs() {
        ..10.0 => format!("{us:.2}"),
        10.0..100.0 => format!("{us:.1}"),
        _ => thousands(us),
    }
}

/// A whole number with separators at thousands.
fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    match value.round() < 0.0 {
        true => format!("\u{2212}{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::arrange::tests::example;

    #[test]
    fn numbers_are_readable() {
        let read: Vec<String> =
            [0.123, 9.5, 42.04, 100.4, 1234.5, 1234567.0, -1500.0].map(microseconds).into();
        assert_eq!(read, ["0.12", "9.50", "42.0", "100", "1,234", "1,234,567", "\u{2212}1,500"]);
    }

    #[test]
    fn lanes_legend_and_notes_are_drawn_within_the_width() {
        let timeline = example();
        let picture = draw(&timeline);
        assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
        for lane in &timeline.lanes {
            assert!(picture.contains(&format!(">{}</text>", lane.name)), "{}", lane.name);
        }
        for says in ["device &lt;0&gt;", "3 requests", "step 3", "head tasks: 19.0", "A note."] {
            assert!(picture.contains(says), "{says} in {picture}");
        }
        // Every element is closed, and within the width.
        assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
        for rect in picture.split("<rect ").skip(1) {
            let read = |name: &str| -> f64 {
                let (_, rest) = rect.split_once(&format!(" {name}=\"")).expect("an attribute");
                rest.split('"').next().and_then(|value| value.parse().ok()).expect("a number")
            };
            assert!(read("x") >= 0.0 && read("x") + read("width") <= WIDTH + 0.1, "{rect}");
            assert!(read("width") > 0.0 && read("height") > 0.0, "{rect}");
        }
    }
}
