//! Plots: panels of curves as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;
use trail_setup::Error;

/// Width of a panel and height of the picture, pixels.
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
}

impl Panel {
    /// A panel of cumulative distributions: the y axis is a share in %.
    pub fn cumulative(axes: [&str; 2], curves: Vec<Curve>) -> Panel {
        Panel { axes: axes.map(String::from), top: Some(100.0), curves }
    }

    /// A panel of other curves.
    pub fn lines(axes: [&str; 2], curves: Vec<Curve>) -> Panel {
        Panel { axes: axes.map(String::from), top: None, curves }
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

/// Draws `panels` side by side as SVG.
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
    let width = PANEL.0 * panels.len().max(1) as u32;
    let root = SVGBackend::with_string(picture, (width, PANEL.1)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 18))?;
    for (area, panel) in root.split_evenly((1, panels.len().max(1))).iter().zip(panels) {
        draw_panel(area, panel)?;
    }
    root.present()?;
    Ok(())
}

/// A number on an axis, without needless zeros.
fn number(value: f64) -> String {
    ((value * 1e4).round() / 1e4).to_string()
}

/// The place of a legend that the curves leave free, or that with the fewest of their points.
fn free_place(panel: &Panel, widest: f64, top: f64) -> SeriesLabelPosition {
    // Each with its range of x and of y, as shares of the panel.
    let places = [
        (SeriesLabelPosition::LowerRight, 0.65..1.01, 0.0..0.3),
        (SeriesLabelPosition::UpperLeft, 0.0..0.35, 0.7..1.01),
        (SeriesLabelPosition::UpperRight, 0.65..1.01, 0.7..1.01),
        (SeriesLabelPosition::MiddleRight, 0.65..1.01, 0.38..0.62),
        (SeriesLabelPosition::LowerLeft, 0.0..0.35, 0.0..0.3),
    ];
    let points: Vec<(f64, f64)> =
        panel.curves.iter().flat_map(|curve| curve.points.windows(2).flat_map(along)).collect();
    let covered = |(_, of_x, of_y): &(_, std::ops::Range<f64>, std::ops::Range<f64>)| {
        let inside =
            |&&(x, y): &&(f64, f64)| of_x.contains(&(x / widest)) && of_y.contains(&(y / top));
        points.iter().filter(inside).count()
    };
    let best = places.into_iter().min_by_key(covered);
    best.map_or(SeriesLabelPosition::LowerRight, |(place, ..)| place)
}

/// Points on the line between two.
fn along(pair: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + use<> {
    let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
    let share = |step: u32| f64::from(step) / 20.0;
    (0..=20).map(share).map(move |share| (x0 + share * (x1 - x0), y0 + share * (y1 - y0)))
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || panel.curves.iter().flat_map(|curve| &curve.points);
    let widest = points().fold(0.1, |most: f64, point| most.max(point.0));
    let highest = points().fold(1e-9, |most: f64, point| most.max(point.1));
    let top = panel.top.unwrap_or(highest * 1.05);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..widest * 1.02, 0.0..top)?;
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
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(free_place(panel, widest, top))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}
