//! The live display, on stderr: one line a run, redrawn in place where stderr is a terminal.

use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use trail_runtime::engine::Engine;

use crate::notice::notice;

/// State of a run, for the live display.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Requests that have arrived.
    pub arrived: usize,
    /// Requests answered.
    pub finished: usize,
    /// Tokens generated.
    pub tokens: u64,
    /// Total output length of the last answered request, tokens: as first predicted, and true.
    pub last: Option<(f32, u32)>,
}

/// Interval at which the line is redrawn.
const PERIOD: Duration = Duration::from_millis(200);

/// One progress bar a run, the finished ones staying above.
pub struct Display {
    all: MultiProgress,
    bar: ProgressBar,
    drawn: Instant,
    begun: Instant,
    runs: usize,
    run: usize,
}

impl Display {
    /// A display of `runs` runs.
    pub fn new(runs: usize) -> Display {
        let now = Instant::now();
        let all = MultiProgress::new();
        Display { all, bar: ProgressBar::hidden(), drawn: now, begun: now, runs, run: 0 }
    }

    /// A run of `requests` requests begins.
    pub fn begin(&mut self, label: &str, requests: usize) {
        self.run += 1;
        self.begun = Instant::now();
        self.drawn = self.begun;
        self.bar = self.all.add(ProgressBar::new(requests as u64));
        let style = ProgressStyle::with_template(
            "{prefix:12} {bar:16} {pos:>4}/{len} {elapsed:>3} {wide_msg}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar.set_style(style);
        self.bar.set_prefix(format!("[{}/{}] {label}", self.run, self.runs));
    }

    /// Redraws now and then.
    pub fn show(&mut self, progress: &Progress, engine: &Engine) {
        self.draw(progress.finished, |seconds| {
            let stats = engine.stats();
            let rate = progress.tokens as f64 / seconds;
            let last = progress.last.map_or(String::new(), |(predicted, found)| {
                format!(", last: {predicted:.0} predicted, {found} true")
            });
            format!(
                "{} running, {} waiting, {rate:.0} tokens/s{last}",
                stats.running, stats.waiting
            )
        });
    }

    /// Redraws now and then, with the message that `message` makes of the seconds since the run
    /// began.
    pub fn draw(&mut self, finished: usize, message: impl FnOnce(f64) -> String) {
        if self.drawn.elapsed() < PERIOD {
            return;
        }
        self.drawn = Instant::now();
        self.bar.set_position(finished as u64);
        self.bar.set_message(message(self.begun.elapsed().as_secs_f64()));
    }

    /// The run is over; its line stays.
    pub fn end(&mut self) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.bar.set_position(self.bar.length().unwrap_or(0));
        self.bar.finish_with_message(format!("done in {seconds:.1} s"));
        if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            notice(format_args!("{} done in {seconds:.1} s", self.bar.prefix()));
        }
    }

    /// All runs are over.
    pub fn finish(&self) {
        self.bar.finish();
    }
}
