//! From hand-drawn strokes to an image like those of the dataset.
//!
//! The dataset's digits were scanned as 32×32 pixels, scaled to fill them, and counted: a pixel of the 8×8 is the ink
//! in a block of 4×4. The same is done here, so position and size of a drawing do not matter.

/// The side length of the scan in pixels.
const SCAN: usize = 32;

/// The side length of the image in pixels.
const SIDE: usize = 8;

/// The number of ink pixels in the scan of a dataset image: short digits are as black as long ones, so their strokes
/// are wider.
const INK: f32 = 313.0;

/// Half the width of a stroke, at least and at most, in pixels of the scan.
const RADIUS: [f32; 2] = [1.7, 3.2];

/// The smallest drawing that is enlarged to fill the image, as a share of the box: a dot stays a dot.
const SMALLEST: f32 = 0.1;

/// An image `[1, 8, 8]` of strokes, 0 for paper to 1 for ink; `None` if nothing is drawn. Each stroke is a line through
/// points; the coordinates are from 0 to 1, first to the right, then down.
#[must_use]
pub fn image_of(strokes: &[&[[f32; 2]]]) -> Option<Vec<f32>> {
    let points = || strokes.iter().copied().flatten().filter(|point| point.iter().all(|x| x.is_finite()));
    let bound = |axis: usize, pick: fn(f32, f32) -> f32| points().map(|point| point[axis]).reduce(pick);
    let low = [bound(0, f32::min)?, bound(1, f32::min)?];
    let high = [bound(0, f32::max)?, bound(1, f32::max)?];
    let extent = (high[0] - low[0]).max(high[1] - low[1]).max(SMALLEST);
    // The space left beside the strokes depends on their width, which depends slightly on their length.
    let length: f32 = strokes.iter().flat_map(|stroke| stroke.windows(2)).map(|ends| between(ends[0], ends[1])).sum();
    let length = length / extent * (SCAN as f32 - 2.0 * RADIUS[0]);
    let radius = (INK / (2.0 * length.max(1.0))).clamp(RADIUS[0], RADIUS[1]);
    let scale = (SCAN as f32 - 2.0 * radius) / extent;
    let place = |point: [f32; 2]| {
        let axis = |axis: usize| (point[axis] - (low[axis] + high[axis]) / 2.0) * scale + SCAN as f32 / 2.0;
        [axis(0), axis(1)]
    };
    let mut image = vec![0.0; SIDE * SIDE];
    for row in 0..SCAN {
        for column in 0..SCAN {
            let pixel = [column as f32 + 0.5, row as f32 + 0.5];
            let is_near = |[a, b]: [[f32; 2]; 2]| distance(pixel, place(a), place(b)) <= radius;
            let is_ink = strokes.iter().any(|stroke| {
                let dot = stroke.first().filter(|_| stroke.len() == 1).map(|&point| [point, point]);
                stroke.windows(2).map(|ends| [ends[0], ends[1]]).chain(dot).any(is_near)
            });
            if is_ink {
                image[row * SIDE / SCAN * SIDE + column * SIDE / SCAN] += (SIDE * SIDE) as f32 / (SCAN * SCAN) as f32;
            }
        }
    }
    Some(image)
}

fn between(a: [f32; 2], b: [f32; 2]) -> f32 {
    (a[0] - b[0]).hypot(a[1] - b[1])
}

/// The distance from a point to the line from `a` to `b`.
fn distance(point: [f32; 2], a: [f32; 2], b: [f32; 2]) -> f32 {
    let (ab, ap) = ([b[0] - a[0], b[1] - a[1]], [point[0] - a[0], point[1] - a[1]]);
    let length = ab[0] * ab[0] + ab[1] * ab[1];
    let along = if length > 0.0 { ((ap[0] * ab[0] + ap[1] * ab[1]) / length).clamp(0.0, 1.0) } else { 0.0 };
    (ap[0] - along * ab[0]).hypot(ap[1] - along * ab[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fills_the_image_at_any_position() {
        let long = image_of(&[&[[0.5, 0.1], [0.5, 0.9]]]).unwrap();
        let short = image_of(&[&[[0.2, 0.3], [0.2, 0.5]]]).unwrap();
        let ink = |image: &[f32]| image.iter().sum::<f32>();
        for (a, b) in long.iter().zip(&short) {
            assert!((a - b).abs() < 0.2, "{long:?}\n{short:?}");
        }
        for row in long.chunks(SIDE) {
            assert!(row[3] > 0.2 && row[4] > 0.2 && row[0] == 0.0 && row[7] == 0.0, "{row:?}");
        }
        assert!((9.0..14.0).contains(&ink(&long)), "{}", ink(&long));
    }

    #[test]
    fn a_dot_is_a_dot_and_nothing_is_nothing() {
        let dot = image_of(&[&[[0.9, 0.1]]]).unwrap();
        assert!(dot.iter().sum::<f32>() < 3.0 && dot[27] > 0.0 && dot[36] > 0.0, "{dot:?}");
        assert_eq!(image_of(&[]), None);
        assert_eq!(image_of(&[&[]]), None);
        assert_eq!(image_of(&[&[[f32::NAN, 0.5]]]), None);
    }
}
