//! The last quarter of an hour, as points of time.

use std::collections::VecDeque;

use trail_runtime::engine::Stats;

/// Seconds between two points.
pub(crate) const EVERY_S: f64 = 2.0;

/// Points that are kept: 15 minutes.
const POINTS: usize = 450;

/// A point.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Point {
    pub now_s: f64,
    pub running: usize,
    pub waiting: usize,
    pub stats: Stats,
}

/// Points, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
}

/// Names of the columns of [`History::rows`].
pub(crate) const COLUMNS: [&str; 8] =
    ["t", "running", "waiting", "blocks", "step_ms", "mae", "hit_rate", "tokens_per_s"];

impl History {
    /// True if a point is due.
    pub(super) fn is_due(&self, now_s: f64) -> bool {
        self.points.back().is_none_or(|last| now_s - last.now_s >= EVERY_S)
    }

    pub(super) fn push(&mut self, point: Point) {
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// The points as rows of numbers.
    pub(crate) fn rows(&self) -> Vec<[Option<f64>; COLUMNS.len()]> {
        let before = std::iter::once(None).chain(self.points.iter().map(Some));
        before.zip(&self.points).map(|(before, point)| row(before, point)).collect()
    }

    /// Rates since the last point, or the one before if that is just past: of tokens, and of prompt
    /// tokens found in the cache since the first point.
    pub(crate) fn rates(&self, now_s: f64, stats: &Stats) -> Rates {
        let recent = self.points.iter().rev().find(|of| now_s - of.now_s >= 0.5 * EVERY_S);
        let point = Point { now_s, stats: *stats, ..Point::default() };
        Rates {
            tokens_per_s: recent.map(|of| per_s(of, &point)),
            step_ms: recent.and_then(|of| step_ms(of, &point)),
            hit_rate: self.points.front().and_then(|of| hit_rate(of, &point)),
        }
    }
}

/// Rates of the last seconds; `None` where nothing happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub tokens_per_s: Option<f64>,
    pub step_ms: Option<f64>,
    pub hit_rate: Option<f64>,
}

fn row(before: Option<&Point>, point: &Point) -> [Option<f64>; COLUMNS.len()] {
    let Point { now_s, running, waiting, stats } = point;
    [
        Some(*now_s),
        Some(*running as f64),
        Some(*waiting as f64),
        Some(stats.blocks_used as f64),
        before.and_then(|of| step_ms(of, point)),
        stats.prediction_window.map(|window| window.mae),
        before.and_then(|of| hit_rate(of, point)),
        before.map(|of| per_s(of, point)),
    ]
}

fn per_s(before: &Point, point: &Point) -> f64 {
    let tokens = point.stats.generated_tokens.saturating_sub(before.stats.generated_tokens);
    tokens as f64 / (point.now_s - before.now_s).max(1e-3)
}

fn step_ms(before: &Point, point: &Point) -> Option<f64> {
    let steps = point.stats.steps.saturating_sub(before.stats.steps);
    let seconds = point.stats.step_seconds - before.stats.step_seconds;
    (steps > 0).then(|| seconds * 1e3 / steps as f64)
}

fn hit_rate(before: &Point, point: &Point) -> Option<f64> {
    let prompts = point.stats.prompt_tokens.saturating_sub(before.stats.prompt_tokens);
    let cached = point.stats.cached_tokens.saturating_sub(before.stats.cached_tokens);
    (prompts > 0).then(|| cached as f64 / prompts as f64)
}
