//! SVG elements: rectangles, lines, texts.

use std::fmt::Write;

/// Mean width of a letter as a share of the font size; a little more, since fonts differ.
const LETTER: f64 = 0.58;

/// A document under construction.
#[derive(Default)]
pub(super) struct Svg {
    body: String,
}

/// The part of a text that is at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// Appends a rectangle, with a border of colour `border`.
    pub(super) fn rect(&mut self, at: [f64; 2], size: [f64; 2], fill: &str, border: Option<&str>) {
        let ([x, y], [width, height]) = (at, size);
        let border = border.map_or(String::new(), |colour| format!(" stroke=\"{colour}\""));
        let _ = writeln!(
            self.body,
            "<rect  x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" fill=\"{fill}\"{border}/>"
        );
    }

    /// Appends a line.
    pub(super) fn line(&mut self, from: [f64; 2], to: [f64; 2], colour: &str, dashed: bool) {
        let ([x1, y1], [x2, y2]) = (from, to);
        let dashes = if dashed { " stroke-dasharray=\"3 3\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<line x1=\"{x1:.2}\" y1=\"{y1:.1}\" x2=\"{x2:.2}\" y2=\"{y2:.1}\" stroke=\"{colour}\"{dashes}/>"
        );
    }

    /// Appends a text of `size` pixels with its base line at `at`.
    pub(super) fn text(
        &mut self,
        at: [f64; 2],
        anchor: Anchor,
        size: f64,
        colour: &str,
        text: &str,
    ) {
        let [x, y] = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"
        );
    }

    /// Returns the document with a white background.
    pub(super) fn finish(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" width=\"{width}\" height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\">\n<rect  x=\"0\" y=\"0\" width=\"{width}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// Approximate width of `text`, pixels.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * LETTER * size
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
