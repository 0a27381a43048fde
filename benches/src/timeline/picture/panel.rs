//! The lanes over one interval of time, with its axis.

use super::svg::{Anchor, Svg, width_of};
use super::{FAINT, INK, colour, thousands};
use crate::timeline::{Lane, Span, Timeline, Zoom};

/// Height of a lane and of the bars in it, pixels.
const LANE: f64 = 30.0;
const BAR: f64 = 22.0;
/// Height above the first lane of a panel, pixels.
const HEAD: f64 = 36.0;
/// Least width of a bar, pixels.
const PIXEL: f64 = 1.0;
/// Least distance of ticks, pixels.
const TICKS_APART: f64 = 84.0;
/// Font sizes of lane names, bar labels and ticks.
const NAME: f64 = 13.0;
const LABEL: f64 = 11.5;
const TICK: f64 = 12.0;

const GRID: &str = "#e4e4e4";
const BORDER: &str = "#b0b0b0";
const STEP: &str = "#888888";
const ZOOM: &str = "#c0392b";
const LETTERS: [&str; 2] = ["A", "B"];
/// Least distance of two letters, pixels.
const LETTERS_APART: f64 = 16.0;

/// Position of the panel and the interval that it shows.
pub(super) struct Panel {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    /// Start and end, microseconds.
    pub(super) range: [f64; 2],
}

impl Panel {
    fn x(&self, us: f64) -> f64 {
        let [from, to] = self.range;
        self.left + (us - from) / (to - from) * (self.right - self.left)
    }

    /// Returns true if `us` is within the panel's interval.
    fn holds(&self, us: f64) -> bool {
        (self.range[0]..=self.range[1]).contains(&us)
    }

    /// Draws the names of the steps above the lanes, and frames of the magnified intervals.
    pub(super) fn headings(&self, svg: &mut Svg, timeline: &Timeline) {
        for (index, &(step, begin)) in timeline.begins.iter().enumerate() {
            let next = timeline.begins.get(index + 1).map_or(self.range[1], |&(_, begin)| begin);
            let (from, to) = (begin.max(self.range[0]), next.min(self.range[1]));
            let text = format!("step {step}");
            if self.x(to) - self.x(from) > width_of(&text, NAME) {
                let middle = (self.x(from) + self.x(to)) / 2.0;
                svg.text([middle, self.top + 12.0], Anchor::Middle, NAME, INK, &text);
            }
        }
        let bottom = self.top + HEAD + timeline.lanes.len() as f64 * LANE;
        let mut taken = f64::NEG_INFINITY;
        for (letter, zoom) in LETTERS.iter().zip(&timeline.zooms) {
            let (from, to) = (self.x(zoom.range[0]), self.x(zoom.range[1]));
            let (from, to) = (from.max(self.left), to.min(self.right));
            let width = (to - from).max(3.0);
            svg.rect(
                [from, self.top + HEAD],
                [width, bottom - self.top - HEAD],
                "#fbe9e6",
                Some(ZOOM),
            );
            let middle = (from + width / 2.0).max(taken + LETTERS_APART);
            svg.text([middle, self.top + HEAD - 5.0], Anchor::Middle, NAME, ZOOM, letter);
            taken = middle;
        }
    }

    /// Draws the title of a magnified interval.
    pub(super) fn title(&self, svg: &mut Svg, index: usize, zoom: &Zoom) {
        let letter = LETTERS.get(index).copied().unwrap_or_default();
        svg.text([self.left, self.top + HEAD - 8.0], Anchor::Start, NAME, ZOOM, letter);
        let at = [self.left + LETTERS_APART, self.top + HEAD - 8.0];
        svg.text(at, Anchor::Start, NAME, INK, zoom.title);
    }

    /// Draws lanes and axis. Returns the lower end, pixels.
    pub(super) fn draw(&self, svg: &mut Svg, timeline: &Timeline, named: bool) -> f64 {
        let top = self.top + HEAD;
        let bottom = top + timeline.lanes.len() as f64 * LANE;
        let ticks = self.ticks();
        for &(us, _) in &ticks {
            svg.line([self.x(us), top], [self.x(us), bottom], GRID, false);
        }
        // Drawn before the bars, so that the lines do not cross the bars' labels.
        for &(_, begin) in timeline.begins.iter().filter(|(_, begin)| self.holds(*begin)) {
            svg.line([self.x(begin), top - 4.0], [self.x(begin), bottom + 3.0], STEP, true);
        }
        for (index, lane) in timeline.lanes.iter().enumerate() {
            let y = top + index as f64 * LANE;
            if named {
                let at = [self.left - 10.0, y + LANE / 2.0 + 4.5];
                svg.text(at, Anchor::End, NAME, INK, &lane.name);
            }
            svg.line([self.left, y], [self.right, y], GRID, false);
            self.lane(svg, lane, y + (LANE - BAR) / 2.0);
        }
        svg.line([self.left, bottom], [self.right, bottom], BORDER, false);
        for (us, label) in &ticks {
            let x = self.x(*us);
            svg.line([x, bottom], [x, bottom + 4.0], BORDER, false);
            svg.text([x, bottom + 17.0], Anchor::Middle, TICK, FAINT, label);
        }
        if named {
            let at = [self.left - 10.0, bottom + 17.0];
            svg.text(at, Anchor::End, TICK, FAINT, "\u{b5}s from the step's begin");
        }
        bottom + 22.0
    }

    fn lane(&self, svg: &mut Svg, lane: &Lane, y: f64) {
        let seen = |span: &&Span| span.end > self.range[0] && span.begin < self.range[1];
        for span in lane.spans.iter().filter(seen) {
            let from = self.x(span.begin.max(self.range[0]));
            let to = self.x(span.end.min(self.range[1]));
            let width = (to - from).max(PIXEL).min(self.right - self.left);
            let from = from.min(self.right - width);
            // A border would hide narrow bars.
            let border = (width > 4.0).then_some("#ffffff");
            svg.rect([from, y], [width, BAR], colour(span.kind), border);
            let name = span.kind.name();
            if width_of(name, LABEL) + 6.0 < width {
                let at = [from + width / 2.0, y + BAR / 2.0 + 4.0];
                svg.text(at, Anchor::Middle, LABEL, INK, name);
            }
        }
    }

    /// Round times at least `TICKS_APART` pixels apart, with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        let [from, to] = self.range;
        let most = ((self.right - self.left) / TICKS_APART).max(1.0);
        let apart = round_up((to - from) / most);
        let decimals = (-apart.log10().floor()).max(0.0) as usize;
        // Labels must stay within the panel.
        let inset = TICKS_APART / 2.0 / (self.right - self.left) * (to - from);
        let first = ((from + inset) / apart).ceil() as i64;
        let last = ((to - inset / 2.0) / apart).floor() as i64;
        (first..=last)
            .map(|index| {
                let us = index as f64 * apart;
                let label = match decimals {
                    0 => thousands(us),
                    _ => format!("{us:.decimals$}"),
                };
                (us, label)
            })
            .collect()
    }
}

/// The least number of the form 1, 2 or 5 times a power of ten that is at least `value`.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-3).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.iter().map(|step| step * power).find(|&step| step >= value).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_apart_and_within() {
        for range in [[-35.0, 135.0], [0.0, 0.07], [-90_000.0, 350_000.0], [250_001.0, 250_042.0]] {
            let panel = Panel { left: 170.0, right: 984.0, top: 0.0, range };
            let ticks = panel.ticks();
            assert!((2..=10).contains(&ticks.len()), "{ticks:?}");
            for pair in ticks.windows(2) {
                let apart = panel.x(pair[1].0) - panel.x(pair[0].0);
                assert!(apart >= TICKS_APART - 0.01, "{apart}");
                assert_ne!(pair[0].1, pair[1].1);
            }
            assert!(ticks.iter().all(|(us, _)| panel.holds(*us)));
        }
        assert_eq!([0.11, 2.0, 30.0].map(round_up), [0.2, 2.0, 50.0]);
    }
}
