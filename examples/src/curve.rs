//! Training curves, drawn as SVG.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

/// A line of a chart: losses by step.
struct Line<'a> {
    points: Vec<(usize, f32)>,
    style: ShapeStyle,
    /// Its name in the legend.
    label: Option<&'a str>,
}

/// Draws the loss of each step, and the mean of each epoch on top, on a logarithmic axis.
///
/// # Errors
///
/// If the file cannot be written.
pub fn draw(path: &Path, title: &str, losses: &[f32], steps_per_epoch: usize) -> Result<(), Box<dyn Error>> {
    let losses: Vec<f32> = losses.iter().copied().map(drawable).collect();
    let epochs = losses.chunks(steps_per_epoch.max(1)).enumerate().map(|(epoch, losses)| {
        // The mean stands in the middle of its epoch.
        (epoch * steps_per_epoch + losses.len() / 2, losses.iter().sum::<f32>() / losses.len() as f32)
    });
    let lines = [
        Line { points: losses.iter().copied().enumerate().collect(), style: BLUE.mix(0.3).into(), label: None },
        Line { points: epochs.collect(), style: BLUE.stroke_width(2), label: None },
    ];
    chart(path, title, (800, 500), &lines)
}

/// Draws the losses of two training runs in a small chart with a legend, the second on top of the first. Each has its
/// name.
///
/// # Errors
///
/// If the file cannot be written.
pub fn compare(path: &Path, title: &str, runs: [(&str, &[f32]); 2]) -> Result<(), Box<dyn Error>> {
    // The first is a broad line, so it stays visible below the second where both coincide.
    let styles = [BLACK.mix(0.35).stroke_width(4), BLUE.stroke_width(1)];
    let lines = [0, 1].map(|which| {
        let ((label, losses), style) = (runs[which], styles[which]);
        // More points would be invisible, and make the file larger.
        let every = losses.len().div_ceil(300).max(1);
        let points = losses.iter().copied().map(drawable).enumerate().step_by(every).collect();
        Line { points, style, label: Some(label) }
    });
    chart(path, title, (480, 300), &lines)
}

/// The lowest drawn loss; smaller losses and NaN are drawn here.
const FLOOR: f32 = 1e-8;

/// A loss on a logarithmic axis, clamped because zero and infinity have no place there.
fn drawable(loss: f32) -> f32 {
    if loss.is_nan() { FLOOR } else { loss.clamp(FLOOR, 1e30) }
}

fn chart(path: &Path, title: &str, size: (u32, u32), lines: &[Line<'_>]) -> Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (low, high) = points().fold((f32::MAX, FLOOR), |(low, high), &(_, loss)| (low.min(loss), high.max(loss)));
    let losses = low.min(high) / 1.2..high * 1.2;
    let steps = points().map(|&(step, _)| step + 1).max().unwrap_or(1);

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let marks = marks(losses.start, losses.end);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 20))
            .margin(20)
            .x_label_area_size(45)
            .y_label_area_size(65)
            .build_cartesian_2d(0..steps, losses.log_scale().with_key_points(marks))?;
        // Light lines at the intervals of the others: their number must not be 0.
        chart.configure_mesh().x_desc("step").y_desc("loss").x_max_light_lines(1).draw()?;
        for Line { points, style, label } in lines {
            let series = chart.draw_series(LineSeries::new(points.iter().copied(), *style))?;
            if let Some(label) = label {
                let style = *style;
                series.label(*label).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
            }
        }
        if lines.iter().any(|line| line.label.is_some()) {
            chart.configure_series_labels().position(SeriesLabelPosition::UpperRight).background_style(WHITE).draw()?;
        }
        area.present()?;
    }
    Ok(std::fs::write(path, svg)?)
}

/// Round numbers to mark on a logarithmic axis, at least three if the range has them: powers of ten, or, in a narrow
/// range, multiples of them.
fn marks(low: f32, high: f32) -> Vec<f32> {
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let tenths = |multiples: &[u32]| -> Vec<f32> {
        let all = exponents.clone().flat_map(|exponent| multiples.iter().map(move |tenths| (*tenths, exponent - 1)));
        // Through text, so that 0.001 is exactly the printed number.
        let numbers = all.filter_map(|(digits, exponent)| format!("{digits}e{exponent}").parse().ok());
        numbers.filter(|number| (low..=high).contains(number)).collect()
    };
    let all: Vec<u32> = (10..100).collect();
    let whole: Vec<u32> = (1..10).map(|digit| 10 * digit).collect();
    let coarse = [&[10][..], &[10, 20, 50], &whole].map(&tenths);
    coarse.into_iter().find(|marks| marks.len() >= 3).unwrap_or_else(|| tenths(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_drawn() {
        let dir = std::env::temp_dir().join(format!("meganeura-curve-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for losses in [&[2.3, 1.0, 0.5, 0.1][..], &[0.0], &[], &[1.0, f32::INFINITY, f32::NAN]] {
            let path = dir.join("loss.svg");
            draw(&path, "loss", losses, 2).unwrap();
            assert!(std::fs::read_to_string(&path).unwrap().contains("<svg"));
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn two_curves_are_distinguishable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss.svg");
        let losses: Vec<f32> = (0..2000u16).map(|step| 2.0 / f32::from(step + 1)).collect();
        for fast in [&losses[..], &losses[..5], &[]] {
            compare(&path, "A title", [("first", &losses), ("second", fast)]).unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            for part in ["A title", "first", "second", "step", "loss"] {
                assert!(svg.contains(part), "{part}: {svg}");
            }
            // Not all of 2000 steps are drawn.
            assert!(svg.len() < 20_000, "{} bytes", svg.len());
        }
    }

    #[test]
    fn axes_are_marked_with_round_numbers() {
        assert_eq!(marks(0.005, 7.0), [0.01, 0.1, 1.0]);
        assert_eq!(marks(0.04, 2.7), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        assert_eq!(marks(0.25, 0.9), [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]);
        assert_eq!(marks(1.05, 1.48), [1.1, 1.2, 1.3, 1.4]);
        assert_eq!(marks(1e-8, 1e-6), [1e-8, 1e-7, 1e-6]);
    }
}
