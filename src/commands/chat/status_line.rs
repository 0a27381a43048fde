//! The terminal's last line while an answer runs: tokens so far, and the predicted rest as a bar.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use trail_runtime::engine::Event;

use crate::{terminal, terminal_modes};

/// Least time between two pictures.
const PERIOD: Duration = Duration::from_millis(100);

/// Terminals with fewer rows or columns keep all of their lines for the text.
const LEAST: (u16, u16) = (5, 40);

/// Width of the bar, characters.
const BAR: usize = 32;

/// A line at the bottom of the terminal, below a scrolling region for the text. It appears with the
/// first prediction and only if stderr is a terminal, where it is written.
pub struct StatusLine {
    is_possible: bool,
    drawn: Instant,
    begin: Instant,
    tokens: usize,
    /// Predicted length of the whole answer, tokens.
    length: Option<f32>,
}

impl StatusLine {
    /// A line that is not yet shown.
    pub fn new() -> StatusLine {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let now = Instant::now();
        StatusLine {
            is_possible: std::io::stderr().is_terminal() && !is_dumb,
            drawn: now - PERIOD,
            begin: now,
            tokens: 0,
            length: None,
        }
    }

    /// Takes an event of the answer.
    pub fn take(&mut self, event: &Event) {
        match *event {
            Event::Token { .. } => self.tokens += 1,
            Event::Prediction { generated, remaining } => {
                self.length = Some(generated as f32 + remaining);
            }
            _ => return,
        }
        if self.is_possible && self.drawn.elapsed() >= PERIOD {
            self.draw();
        }
    }

    fn draw(&mut self) {
        let (Some(length), Some(size)) = (self.length, size()) else { return };
        self.drawn = Instant::now();
        let rate = self.tokens as f64 / self.begin.elapsed().as_secs_f64().max(1e-9);
        let text = text(self.tokens, length, rate, size.1.into());
        terminal::draw(size, &text);
    }
}

impl Drop for StatusLine {
    /// Clears the line, and lets the whole terminal scroll again.
    fn drop(&mut self) {
        terminal::reset_region();
    }
}

/// Rows and columns of the terminal at stderr, if they suffice.
fn size() -> Option<(u16, u16)> {
    terminal_modes::size().filter(|(rows, columns)| *rows >= LEAST.0 && *columns >= LEAST.1)
}

/// The line for `tokens` tokens of an answer that is expected to have `length`.
fn text(tokens: usize, length: f32, rate: f64, columns: usize) -> String {
    let rest = (length - tokens as f32).max(0.0);
    let share = tokens as f32 / (tokens as f32 + rest).max(1.0);
    let done = (share * BAR as f32) as usize;
    let bar = format!("{:-<BAR$}", "#".repeat(done.min(BAR)));
    let line = format!("[{bar}] {tokens} tokens, about {rest:.0} to come, {rate:.1} tokens/s");
    line.chars().take(columns - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_the_share_of_the_predicted_length() {
        let line = text(25, 100.0, 12.34, 100);
        let expected = "[########------------------------] 25 tokens, about 75 to come";
        assert_eq!(line, format!("{expected}, 12.3 tokens/s"));
        assert_eq!(text(25, 100.0, 12.34, 40).len(), 39);
        assert!(text(0, 0.0, 0.0, 100).starts_with("[-----"), "no token yet");
        assert!(text(9, 4.0, 0.0, 100).contains("[################################] 9 tokens"));
    }
}
