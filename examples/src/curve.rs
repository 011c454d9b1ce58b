//! A training curve, drawn as SVG.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

/// Draws the loss of each step, and the mean of each epoch on top, on a logarithmic axis.
///
/// # Errors
///
/// If the file cannot be written.
pub fn draw(path: &Path, title: &str, losses: &[f32], steps_per_epoch: usize) -> Result<(), Box<dyn Error>> {
    // A logarithm has no place for zero, nor an axis for infinity.
    let (floor, ceiling) = (1e-6, 1e30);
    let losses: Vec<f32> = losses.iter().map(|loss| loss.max(floor).min(ceiling)).collect();
    let (low, high) = losses.iter().fold((f32::MAX, floor), |(low, high), &loss| (low.min(loss), high.max(loss)));

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (800, 500)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 20))
            .margin(20)
            .x_label_area_size(45)
            .y_label_area_size(65)
            .build_cartesian_2d(0..losses.len().max(1), (low.min(high) / 1.2..high * 1.2).log_scale())?;
        chart.configure_mesh().x_desc("step").y_desc("loss").light_line_style(WHITE).draw()?;

        let steps = losses.iter().copied().enumerate();
        chart.draw_series(LineSeries::new(steps, BLUE.mix(0.3)))?;
        let epochs = losses.chunks(steps_per_epoch.max(1)).enumerate().map(|(epoch, losses)| {
            // The mean stands in the middle of its epoch.
            (epoch * steps_per_epoch + losses.len() / 2, losses.iter().sum::<f32>() / losses.len() as f32)
        });
        chart.draw_series(LineSeries::new(epochs, BLUE.stroke_width(2)))?;
        area.present()?;
    }
    Ok(std::fs::write(path, svg)?)
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
}
