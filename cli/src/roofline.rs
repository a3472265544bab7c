//! Figures under the machine's roofline (Williams, Waterman, Patterson, *Roofline*, CACM 52(4),
//! 2009): operations per second over operations per byte, both logarithmic.
//!
//! A roof each of products of bytes, of floats, and of bf16 where the level has them. No figure can lie
//! above its own; where it lies beneath the slope, memory bounds it, and beneath the flat part,
//! arithmetic.

use std::error::Error;

use plotters::prelude::*;
use weir_runtime::command::bench::{Figure, Label};

/// Pixels.
const SIZE: (u32, u32) = (960, 640);

/// Points of a figure.
struct Point {
    intensity: f64,
    rate: f64,
    name: String,
}

/// Draws figures as SVG; an error if none has a place, for then there are no axes.
pub fn draw(figures: &[Figure], label: &Label) -> Result<String, Box<dyn Error>> {
    let points: Vec<Point> = figures.iter().filter_map(point).collect();
    if points.is_empty() {
        return Err("no figure to draw".into());
    }
    let peaks = &label.peaks;
    let roofs = [
        ("int8", peaks.integer.best, &BLUE),
        ("bf16", peaks.bf16.best, &GREEN),
        ("f32", peaks.float.best, &RED),
    ];
    let roofs = roofs.into_iter().filter(|(_, peak, _)| *peak > 0.0);
    let top = 2.0 * peaks.integer.best.max(peaks.float.best) / 1e9;
    let intensities = || points.iter().map(|point| point.intensity);
    let left = intensities().fold(1.0, f64::min) / 2.0;
    let right = intensities().fold(4.0 * top * 1e9 / peaks.read.best, f64::max);
    let bottom = points.iter().map(|point| point.rate / 1e9).fold(top / 100.0, f64::min) / 2.0;
    let mut drawing = String::new();
    {
        let area = SVGBackend::with_string(&mut drawing, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let caption = format!(
            "{} {}, {}, threads {}: read {:.1} GB/s",
            label.model,
            label.dtype,
            label.isa.name(),
            label.threads,
            peaks.read.best / 1e9
        );
        let mut chart = ChartBuilder::on(&area)
            .caption(caption, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d((left..right).log_scale(), (bottom..top).log_scale())?;
        chart.configure_mesh().x_desc("operations per byte").y_desc("Gop/s").draw()?;
        for (name, peak, colour) in roofs {
            let height = |intensity: f64| (intensity * peaks.read.best).min(peak) / 1e9;
            let corner = (peak / peaks.read.best).clamp(left, right);
            let line = [left, corner, right].map(|intensity| (intensity, height(intensity)));
            chart
                .draw_series(LineSeries::new(line, colour))?
                .label(format!("{name}: {:.0} Gop/s", peak / 1e9))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
        }
        chart.draw_series(points.iter().map(|point| {
            let style = ("sans-serif", 12).into_font();
            EmptyElement::at((point.intensity, point.rate / 1e9))
                + Circle::new((0, 0), 4, BLACK.filled())
                + Text::new(point.name.clone(), (7, -6), style)
        }))?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .border_style(BLACK)
            .draw()?;
        area.present()?;
    }
    Ok(drawing)
}

/// Where a figure lies; nothing if its work is not known.
fn point(figure: &Figure) -> Option<Point> {
    let measured = figure.measured?;
    let operations = measured.work.integer_operations + measured.work.float_operations;
    (measured.work.bytes > 0 && operations > 0).then(|| Point {
        intensity: operations as f64 / measured.work.bytes as f64,
        rate: operations as f64 / measured.seconds,
        name: format!("{} @{} b{}", figure.metric, figure.context, figure.batch),
    })
}
