//! The few elements of SVG that the picture is made of.

use std::fmt::Write;

/// Share of the font's size that a letter takes on average: fonts differ, so a little more.
const LETTER: f64 = 0.58;

/// Elements, one after the other.
#[derive(Default)]
pub(super) struct Svg {
    body: String,
}

/// Which end of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// A rectangle, with a border in `border`.
    pub(super) fn rect(&mut self, at: [f64; 2], size: [f64; 2], fill: &str, border: Option<&str>) {
        let ([x, y], [width, height]) = (at, size);
        let border = border.map_or(String::new(), |colour| format!(" stroke=\"{colour}\""));
        let _ = writeln!(
            self.body,
            "<rect  x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" fill=\"{fill}\"{border}/>"
        );
    }

    /// A line; broken where `dashed`.
    pub(super) fn line(&mut self, from: [f64; 2], to: [f64; 2], colour: &str, dashed: bool) {
        let ([x1, y1], [x2, y2]) = (from, to);
        let dashes = if dashed { " stroke-dasharray=\"3 3\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<line x1=\"{x1:.2}\" y1=\"{y1:.1}\" x2=\"{x2:.2}\" y2=\"{y2:.1}\" stroke=\"{colour}\"{dashes}/>"
        );
    }

    /// A text of `size` pixels, its base line at `at`.
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

    /// The picture, on white.
    pub(super) fn finish(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" width=\"{width}\" height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\">\n<rect  x=\"0\" y=\"0\" width=\"{width}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// About how wide `text` is, pixels.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * LETTER * size
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
