//! The picture: how latency and time to first token are distributed under each policy.

use plotters::prelude::*;
use trail_setup::Error;
use trail_setup::drive::Outcome;

/// Width and height of the picture, pixels.
const SIZE: (u32, u32) = (1100, 480);

/// One policy's curve pair.
pub struct Curves {
    /// The policy's name.
    pub policy: String,
    /// Latencies, seconds, any order.
    pub latency_s: Vec<f64>,
    /// Times to first token, seconds, any order.
    pub ttft_s: Vec<f64>,
}

impl Curves {
    /// The curves of a run.
    pub fn of(policy: &str, outcomes: &[Outcome]) -> Curves {
        Curves {
            policy: policy.into(),
            latency_s: outcomes.iter().map(|o| o.latency_s).collect(),
            ttft_s: outcomes.iter().map(|o| o.ttft_s).collect(),
        }
    }
}

/// One colour a policy, told apart by colour-blind readers too (Okabe and Ito's palette).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 0, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

/// Draws the cumulative distributions as SVG, with all times multiplied by `factor`.
pub fn draw(title: &str, curves: &[Curves], factor: f64) -> Result<String, Error> {
    let scaled = |values: &[f64]| values.iter().map(|value| value * factor).collect();
    let curves: Vec<Curves> = curves
        .iter()
        .map(|curve| Curves {
            policy: curve.policy.clone(),
            latency_s: scaled(&curve.latency_s),
            ttft_s: scaled(&curve.ttft_s),
        })
        .collect();
    let mut picture = String::new();
    try_draw(&mut picture, title, &curves)
        .map_err(|error| Error::failed(format!("cannot draw the plot: {error}")))?;
    Ok(picture)
}

fn try_draw(
    picture: &mut String,
    title: &str,
    curves: &[Curves],
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 18))?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);
    let latency: Vec<_> =
        curves.iter().map(|c| (c.policy.as_str(), c.latency_s.as_slice())).collect();
    let ttft: Vec<_> = curves.iter().map(|c| (c.policy.as_str(), c.ttft_s.as_slice())).collect();
    panel(&left, ["latency (arrival to last token), s", "requests answered, %"], &latency)?;
    panel(&right, ["time to first token, s", "requests begun, %"], &ttft)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(
    area: &Area,
    [x, y]: [&str; 2],
    curves: &[(&str, &[f64])],
) -> Result<(), Box<dyn std::error::Error>> {
    let longest =
        curves.iter().flat_map(|(_, values)| values.iter()).fold(0.1, |a: f64, &b| a.max(b));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..longest * 1.02, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .label_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .draw()?;
    for (index, (policy, values)) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(cumulative(values), colour.stroke_width(2)))?
            .label(*policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

/// The points (value, share of values not above it in %), rising.
fn cumulative(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let share = 100.0 / sorted.len().max(1) as f64;
    std::iter::once((0.0, 0.0))
        .chain(sorted.iter().enumerate().map(|(i, &value)| (value, share * (i + 1) as f64)))
        .collect()
}
