//! Plots: panels of curves as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use trail_cli::Error;

/// Width and height of a panel, pixels.
const PANEL: (u32, u32) = (550, 480);

/// Most points of a distribution, but for the first and the last.
const MAX_POINTS: usize = 500;

/// One named curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Points, by ascending x.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// The cumulative distribution of `values`: (value, share of values not above it in %).
    pub fn cumulative(name: &str, values: impl IntoIterator<Item = f64>) -> Curve {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let share = 100.0 / sorted.len().max(1) as f64;
        let last = sorted.len().saturating_sub(1);
        // More points than pixels would only make the file large.
        let every = sorted.len().div_ceil(MAX_POINTS).max(1);
        let shown = |&(i, _): &(usize, &f64)| i % every == every - 1 || i == last;
        let rising = sorted.iter().enumerate().filter(shown);
        let rising = rising.map(|(i, &value)| (value, share * (i + 1) as f64));
        Curve { name: name.into(), points: std::iter::once((0.0, 0.0)).chain(rising).collect() }
    }

    /// Points along the lines.
    fn samples(&self) -> impl Iterator<Item = (f64, f64)> {
        let between = |a: f64, b: f64, i: u32| a + (b - a) * f64::from(i) / 16.0;
        self.points.windows(2).flat_map(move |pair| {
            let [a, b] = [pair[0], pair[1]];
            (0..=16).map(move |i| (between(a.0, b.0, i), between(a.1, b.1, i)))
        })
    }
}

/// Form in which a panel shows its data.
#[derive(Clone, Debug)]
enum Glyphs {
    /// A line through the points of each curve.
    Lines,
    /// A dot at each point.
    Dots,
    /// Squares in place of curves, darker where the logarithm of the count is larger:
    /// `[row][column]`, from the lower left.
    Cells(Vec<Vec<u64>>),
}

/// One diagram.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Captions of the x and the y axis.
    pub axes: [String; 2],
    /// Top of the y axis; `None` for the largest y.
    pub top: Option<f64>,
    /// The curves.
    pub curves: Vec<Curve>,
    glyphs: Glyphs,
}

impl Panel {
    /// A panel of cumulative distributions: the y axis is a share in %.
    pub fn cumulative(axes: [&str; 2], curves: Vec<Curve>) -> Panel {
        Panel { axes: axes.map(String::from), top: Some(100.0), curves, glyphs: Glyphs::Lines }
    }

    /// A panel of other curves.
    pub fn lines(axes: [&str; 2], curves: Vec<Curve>) -> Panel {
        Panel { axes: axes.map(String::from), top: None, curves, glyphs: Glyphs::Lines }
    }

    /// A panel of dots.
    pub fn dots(axes: [&str; 2], curves: Vec<Curve>) -> Panel {
        Panel { glyphs: Glyphs::Dots, ..Panel::lines(axes, curves) }
    }

    /// A panel of counts `[row][column]`, on a logarithmic scale.
    pub fn cells(axes: [&str; 2], counts: Vec<Vec<u64>>) -> Panel {
        let corner = (counts.first().map_or(0.0, |row| row.len() as f64), counts.len() as f64);
        let edge = Curve { name: String::new(), points: vec![(0.0, 0.0), corner] };
        let top = Some(corner.1);
        Panel { glyphs: Glyphs::Cells(counts), top, ..Panel::lines(axes, vec![edge]) }
    }

    /// The corner in which a legend covers the least of the curves.
    fn legend_corner(&self, x: Range<f64>, top: f64) -> SeriesLabelPosition {
        let wide = 0.35 * (x.end - x.start);
        let high = (0.05 + 0.05 * self.curves.len() as f64) * top;
        let covered = |is_right: bool, is_top: bool| {
            let inside = |&(at, y): &(f64, f64)| {
                let across = if is_right { x.end - at < wide } else { at - x.start < wide };
                across && if is_top { top - y < high } else { y < high }
            };
            self.curves.iter().flat_map(Curve::samples).filter(inside).count()
        };
        [
            (covered(false, true), SeriesLabelPosition::UpperLeft),
            (covered(true, false), SeriesLabelPosition::LowerRight),
            (covered(true, true), SeriesLabelPosition::UpperRight),
            (covered(false, false), SeriesLabelPosition::LowerLeft),
        ]
        .into_iter()
        .min_by_key(|(samples, _)| *samples)
        .map_or(SeriesLabelPosition::UpperLeft, |(_, corner)| corner)
    }
}

/// One colour a curve, told apart by colour-blind readers too (Okabe and Ito's palette).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 0, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

/// Most panels side by side; more are drawn in rows of two.
const MAX_COLUMNS: usize = 3;

/// Draws `panels` as SVG: side by side, or in rows of two.
pub fn draw(title: &str, panels: &[Panel]) -> Result<String, Error> {
    let mut picture = String::new();
    try_draw(&mut picture, title, panels)
        .map_err(|error| Error::failed(format!("cannot draw the plot: {error}")))?;
    Ok(picture)
}

fn try_draw(
    picture: &mut String,
    title: &str,
    panels: &[Panel],
) -> Result<(), Box<dyn std::error::Error>> {
    let columns = if panels.len() > MAX_COLUMNS { 2 } else { panels.len().max(1) };
    let rows = panels.len().div_ceil(columns).max(1);
    let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32);
    let root = SVGBackend::with_string(picture, size).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 18))?;
    for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
        draw_panel(area, panel)?;
    }
    root.present()?;
    Ok(())
}

/// A number on an axis, without needless zeros.
fn number(value: f64) -> String {
    ((value * 1e4).round() / 1e4).to_string()
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || panel.curves.iter().flat_map(|curve| &curve.points);
    let widest = points().fold(0.1, |max: f64, point| max.max(point.0));
    let highest = points().fold(1e-9, |max: f64, point| max.max(point.1));
    let left = points().fold(widest, |least: f64, point| least.min(point.0)).max(0.0);
    let right = widest + 0.02 * (widest - left).max(0.1);
    let top = panel.top.unwrap_or(highest * 1.05);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(left..right, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(&panel.axes[0])
        .y_desc(&panel.axes[1])
        .x_label_formatter(&|&x| number(x))
        .y_label_formatter(&|&y| number(y))
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .draw()?;
    for (index, curve) in panel.curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points = curve.points.iter().copied();
        let series = match &panel.glyphs {
            Glyphs::Dots => {
                chart.draw_series(points.map(|at| Circle::new(at, 2, colour.filled())))?
            }
            Glyphs::Lines => chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?,
            Glyphs::Cells(counts) => chart.draw_series(cells(counts))?,
        };
        series
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    if panel.curves.len() < 2 {
        return Ok(());
    }
    chart
        .configure_series_labels()
        .position(panel.legend_corner(left..right, top))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

/// A square for each count, from white for none to blue for the largest.
fn cells(counts: &[Vec<u64>]) -> impl Iterator<Item = Rectangle<(f64, f64)>> + '_ {
    let log = |count: u64| (count as f64).ln_1p();
    let max = log(counts.iter().flatten().copied().max().unwrap_or(0)).max(1e-9);
    let row = move |(y, row): (usize, &'_ Vec<u64>)| {
        let cell = move |(x, &count): (usize, &u64)| {
            let colour = COLOURS[2].mix(log(count) / max);
            let (x, y) = (x as f64, y as f64);
            Rectangle::new([(x, y), (x + 1.0, y + 1.0)], colour.filled())
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>()
    };
    counts.iter().enumerate().flat_map(row)
}
