//! Coloured shapes, drawn on demand: a dataset without a download.

use meganeura::Result;
use meganeura::data::{Array, Examples};
use meganeura::module::Seed;

/// The classes; an image's label is the position in this list.
pub const CLASSES: [&str; 8] = ["disc", "ring", "square", "frame", "triangle", "cross", "bar", "half-disc"];

/// The side length in pixels.
const SIDE: usize = 32;

/// A number of images of shape `[3, 32, 32]`, cycling through the classes. Position, size, angle and both colours
/// depend on the seed and the image's number; the class depends only on the form.
#[derive(Debug, Clone, Copy)]
pub struct Shapes {
    count: usize,
    seed: Seed,
}

impl Shapes {
    /// A number of images.
    #[must_use]
    pub fn new(count: usize, seed: impl Into<Seed>) -> Self {
        Self { count, seed: seed.into() }
    }
}

impl Examples for Shapes {
    type Inputs = Array<f32>;
    type Targets = u32;

    fn len(&self) -> usize {
        self.count
    }

    fn read(&self, index: usize) -> Result<(Array<f32>, u32)> {
        let mut image = Array::zeros([3, SIDE, SIDE])?;
        let pixels = image.values_mut();
        let class = index % CLASSES.len();
        let seed = self.seed.index(index);
        let between = |name, low: f32, high: f32| low + (high - low) * unit(seed.field(name));
        let radius = between("radius", 8.0, 13.0);
        let centre = |name| SIDE as f32 / 2.0 + between(name, -1.0, 1.0) * (SIDE as f32 / 2.0 - radius);
        let (x0, y0) = (centre("x"), centre("y"));
        let (sin, cos) = between("angle", 0.0, std::f32::consts::TAU).sin_cos();
        // One colour is dark and the other bright, in either order.
        let colours = ["paper", "ink"].map(|name| [0, 1, 2].map(|channel| unit(seed.field(name).index(channel)) * 0.4));
        let lift = if unit(seed.field("bright")) < 0.5 { [0.0, 0.6] } else { [0.6, 0.0] };

        for (pixel, noise) in (0..SIDE * SIDE).map(|pixel| (pixel, seed.field("noise").index(pixel))) {
            // Four sample points per pixel, for smooth edges.
            let covered = [(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)].map(|(dx, dy)| {
                let (x, y) = ((pixel % SIDE) as f32 + dx - x0, (pixel / SIDE) as f32 + dy - y0);
                is_inside(class, (cos * x + sin * y) / radius, (cos * y - sin * x) / radius)
            });
            let ink = covered.iter().filter(|&&inside| inside).count() as f32 / 4.0;
            for channel in 0..3 {
                let [paper, ink_colour] = [0, 1].map(|which| colours[which][channel] + lift[which]);
                let value = paper + ink * (ink_colour - paper) + 0.1 * (unit(noise) - 0.5);
                pixels[channel * SIDE * SIDE + pixel] = value.clamp(0.0, 1.0);
            }
        }
        Ok((image, class as u32))
    }
}

/// `true` if a point is part of a form, which fits into the disc of radius 1 around the origin.
fn is_inside(class: usize, x: f32, y: f32) -> bool {
    let (from_centre, largest) = (x.hypot(y), x.abs().max(y.abs()));
    match CLASSES[class] {
        "disc" => from_centre < 0.9,
        "ring" => (0.5..0.95).contains(&from_centre),
        "square" => largest < 0.7,
        "frame" => (0.35..0.7).contains(&largest),
        "triangle" => y > -0.5 && 3.0_f32.sqrt() * x.abs() + y < 1.0,
        "cross" => largest < 0.95 && x.abs().min(y.abs()) < 0.25,
        "bar" => x.abs() < 0.95 && y.abs() < 0.25,
        "half-disc" => from_centre < 1.0 && y > 0.0,
        other => unreachable!("{other} is in the list"),
    }
}

/// A number from 0 to 1, excluding 1.
fn unit(seed: Seed) -> f32 {
    (seed.get() >> 40) as f32 / (1u32 << 24) as f32
}

#[cfg(test)]
mod tests {
    use meganeura::data::Dataset;

    use super::*;

    #[test]
    fn images_follow_seed_and_number() {
        let shapes = |seed: u64| Dataset::of(Shapes::new(16, seed)).unwrap();
        let image = |seed, index| shapes(seed).get(index).unwrap();
        assert_eq!(image(1, 3), image(1, 3));
        assert_ne!(image(1, 3).0, image(2, 3).0);
        assert_ne!(image(1, 3).0, image(1, 11).0);
        assert_eq!([image(1, 3).1, image(1, 11).1], [3, 3]);
    }

    #[test]
    fn forms_differ_and_fit() {
        let points = |class| {
            let at = |i: usize| (i as f32 - 50.0) / 40.0;
            (0..101 * 101).filter(|i| is_inside(class, at(i % 101), at(i / 101))).collect::<Vec<_>>()
        };
        let forms: Vec<_> = (0..CLASSES.len()).map(points).collect();
        for (class, form) in forms.iter().enumerate() {
            assert!(form.len() > 500, "{} has {} points", CLASSES[class], form.len());
            let outside = |&&i: &&usize| ((i % 101) as f32 - 50.0).hypot((i / 101) as f32 - 50.0) > 40.0 * 1.01;
            assert_eq!(form.iter().filter(outside).count(), 0, "{}", CLASSES[class]);
            assert!(forms[..class].iter().all(|other| other != form));
        }
    }
}
