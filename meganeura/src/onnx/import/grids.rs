//! Operators that read images between their pixels, at computed places.

use super::call::{Call, Operators};
use super::element::Element;
use super::images::{Window, groups, kernel, with_bias};
use super::matrices::product;
use super::value::{Array, Data, Value, sound};
use crate::error::bail;
use crate::ops::{GridSampleMode, GridSampleOptions, GridSamplePadding};
use crate::{DType, Result, Var};

pub(super) const OPERATORS: Operators = &[("DeformConv", deform_conv), ("GridSample", grid_sample)];

/// The value between pixels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

/// The value outside of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// A sampler of images.
#[derive(Clone, Copy)]
struct Sampler {
    mode: Mode,
    padding: Padding,
    align_corners: bool,
}

/// One of the pixels along an axis that a sample reads, and its factor, `[N, 1, points]`.
struct Tap {
    at: Var,
    factor: Var,
}

fn grid_sample(call: &Call<'_>) -> Result<Vec<Value>> {
    let mode = match call.text("mode", "linear")? {
        "nearest" => Mode::Nearest,
        "linear" | "bilinear" => Mode::Linear,
        "cubic" | "bicubic" => Mode::Cubic,
        other => bail!(Checkpoint, "the mode {other:?} is not supported"),
    };
    let padding = match call.text("padding_mode", "zeros")? {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => bail!(Checkpoint, "the padding {other:?} is not supported"),
    };
    let sampler = Sampler { mode, padding, align_corners: call.flag("align_corners", false)? };
    call.floats(sampler.sampled(&call.float(0)?, &call.float(1)?)?)
}

impl Sampler {
    /// Samples of `x [N, C, …]` at the places of a grid `[N, …, D]` from −1 to 1, the last axis of the image first.
    fn sampled(self, x: &Var, grid: &Var) -> Result<Var> {
        let (shape, places) = (x.shape(), grid.shape());
        let fits = |axes: usize| shape.rank() == axes + 2 && places.rank() == axes + 2 && places[0] == shape[0];
        let ([n, c, extents @ ..], [_, out @ .., axes]) = (shape.dims(), places.dims()) else {
            bail!(Checkpoint, "images {shape} and a grid {places}");
        };
        if !fits(*axes) {
            bail!(Checkpoint, "images {shape} and a grid {places}, which has places of {axes} numbers");
        }
        let of_library = match (self.mode, self.padding) {
            (Mode::Linear, Padding::Zeros) => Some((GridSampleMode::Bilinear, GridSamplePadding::Zeros)),
            (Mode::Linear, Padding::Border) => Some((GridSampleMode::Bilinear, GridSamplePadding::Border)),
            (Mode::Nearest, Padding::Zeros) => Some((GridSampleMode::Nearest, GridSamplePadding::Zeros)),
            (Mode::Nearest, Padding::Border) => Some((GridSampleMode::Nearest, GridSamplePadding::Border)),
            _ => None,
        };
        if let (Some((mode, padding)), 2) = (of_library, *axes) {
            let options = GridSampleOptions { mode, padding, align_corners: self.align_corners };
            return sound(x.grid_sample(grid, options));
        }
        let (points, area) = (out.iter().product::<usize>(), extents.iter().product::<usize>());
        // Each pixel that a sample reads, by its place among all pixels of the image.
        let mut read: Vec<Tap> = Vec::new();
        for (axis, &extent) in extents.iter().enumerate() {
            let place = grid.slice(axes + 1, axes - 1 - axis..axes - axis).reshape([*n, 1, points]);
            let taps = self.taps(&place, extent);
            read = match read[..] {
                [] => taps,
                _ => {
                    let step = |tap: &Tap| &tap.at * tap.at.constant(extent as f64);
                    let joined = |all: &Tap| {
                        let (first, factor) = (step(all), all.factor.clone());
                        let each = |tap: &Tap| Tap { at: &first + &tap.at, factor: &factor * &tap.factor };
                        taps.iter().map(each).collect::<Vec<_>>()
                    };
                    read.iter().flat_map(joined).collect()
                }
            };
        }
        if read.is_empty() {
            bail!(Checkpoint, "images {shape} without axes to sample along");
        }
        let joined = |part: fn(&Tap) -> &Var| Var::concat(&read.iter().map(part).collect::<Vec<_>>(), 1);
        let (at, factors) = (joined(|tap| &tap.at).to_index(), joined(|tap| &tap.factor));
        let dims = [&[*n, *c], out].concat();
        sound(x.reshape([*n, *c, area]).weighted_gather(&at, &factors).reshape(&dims[..]))
    }

    /// The pixels along an axis that are read for places from −1 to 1.
    fn taps(self, place: &Var, extent: usize) -> Vec<Tap> {
        let number = |number: f64| place.constant(number);
        let (one, count) = (number(1.0), extent as f64);
        let from_edge = place + &one;
        let place = match self.align_corners {
            true => from_edge.scale(0.5 * (count - 1.0)),
            false => from_edge.scale(0.5 * count) - number(0.5),
        };
        let (first, factors) = match self.mode {
            // NaN, where the place is.
            Mode::Nearest => (place.round(), vec![place.ne(&place).where_cond(&place, &one)]),
            Mode::Linear => {
                let below = place.floor();
                let far = &place - &below;
                (below, vec![&one - &far, far])
            }
            Mode::Cubic => {
                let below = place.floor();
                let far = &place - &below;
                let factors =
                    vec![outer(&(&far + &one)), inner(&far), inner(&(&one - &far)), outer(&(number(2.0) - far))];
                (below - &one, factors)
            }
        };
        let tap = |(k, factor): (usize, Var)| {
            let at = &first + number(k as f64);
            // An index of its own where the place is NaN.
            let at = at.eq(&at).where_cond(&at, &number(0.0));
            let inside = at.clamp(0.0, count - 1.0);
            match self.padding {
                Padding::Zeros => Tap { factor: factor * inside.eq(&at), at: inside.cast(DType::I32) },
                Padding::Border => Tap { factor, at: inside.cast(DType::I32) },
                Padding::Reflection => Tap { factor, at: self.reflected(&at, count).cast(DType::I32) },
            }
        };
        factors.into_iter().enumerate().map(tap).collect()
    }

    /// Whole places, reflected at the edges of an axis until they are inside.
    fn reflected(self, at: &Var, count: f64) -> Var {
        let (low, width) = if self.align_corners { (0.0, count - 1.0) } else { (-0.5, count) };
        if width == 0.0 {
            return at.constant(0.0).expand(at.shape());
        }
        let far = (at - at.constant(low)).abs();
        let far = &far - (far.scale(0.5 / width)).floor().scale(2.0 * width);
        let back = far.constant(2.0 * width) - &far;
        (far.minimum(&back) + at.constant(low)).clamp(0.0, count - 1.0).round()
    }
}

/// The cubic convolution's factor at a distance of at most 1.
fn inner(x: &Var) -> Var {
    (x.scale(1.25) - x.constant(2.25)) * x.square() + x.constant(1.0)
}

/// The cubic convolution's factor at a distance from 1 to 2.
fn outer(x: &Var) -> Var {
    let factor = (x.scale(-0.75) + x.constant(3.75)) * x - x.constant(6.0);
    factor * x + x.constant(3.0)
}

/// A convolution whose window reads each of its pixels at a computed distance from its place, and weighs it.
fn deform_conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, weight, offset) = (call.float(0)?, call.float(1)?, call.float(2)?);
    let (shape, kernel) = (x.shape(), kernel(call, &weight)?);
    let (&[n, c, height, width], &[rows, columns]) = (shape.dims(), &kernel[..]) else {
        bail!(Checkpoint, "images {shape} and a weight {}; only two dimensions are supported", weight.shape());
    };
    let (groups, parts) = (groups(call)?, call.int("offset_group", 1)?);
    let parts = usize::try_from(parts).unwrap_or(0);
    let window = Window::<2>::of(call, [rows, columns], shape)?;
    let Some([down, across]) = window.places(shape) else {
        bail!(Checkpoint, "a window {kernel:?} of images {shape}, which are smaller");
    };
    let (out, taps, points) = (weight.shape()[0], rows * columns, down * across);
    let divides = |count: usize, of: usize| count != 0 && of.is_multiple_of(count);
    if !divides(parts, c) || !divides(groups, c) || !divides(groups, out) || weight.shape()[1] != c / groups {
        bail!(
            Checkpoint,
            "a weight {} of images {shape} in {groups} groups, with offsets of {parts} groups",
            weight.shape()
        );
    }
    if offset.shape().dims() != [n, parts * taps * 2, down, across] {
        bail!(Checkpoint, "offsets {}, not [{n}, {}, {down}, {across}]", offset.shape(), parts * taps * 2);
    }
    call.budget.charge(2 * taps * points)?;
    let offset = offset.reshape([n * parts, taps, 2, points]);
    // The place of each tap of each window, in pixels.
    let place = |axis: usize| {
        let own = |tap: usize, point: usize| {
            let (tap, point) =
                if axis == 0 { (tap / columns, point / across) } else { (tap % columns, point % across) };
            (point * window.stride[axis] + tap * window.dilation[axis]) as f64 - window.before[axis] as f64
        };
        let floats = (0..taps).flat_map(|tap| (0..points).map(move |point| own(tap, point))).collect();
        let array = Array { dims: vec![1, taps, points], element: Element::F32, data: Data::Floats(floats) };
        let moved = offset.slice(2, axis..axis + 1).reshape([n * parts, taps, points]) + array.own(call.tape)?;
        Ok::<_, crate::Error>(moved.reshape([n * parts, 1, taps * points]))
    };
    let images = x.reshape([n * parts, c / parts, height, width]);
    let mut read = images.sample_at([&place(1)?, &place(0)?], [taps, points], GridSampleOptions::default());
    if call.optional(4).is_some() {
        let mask = call.float(4)?;
        if mask.shape().dims() != [n, parts * taps, down, across] {
            bail!(Checkpoint, "a mask {}, not [{n}, {}, {down}, {across}]", mask.shape(), parts * taps);
        }
        read *= mask.reshape([n * parts, 1, taps, points]);
    }
    let length = c / groups * taps;
    let read = sound(read)?.reshape([n, groups, length, points]);
    let y = product(&weight.reshape([1, groups, out / groups, length]), &read)?;
    call.floats(with_bias(call, 3, y.reshape([n, out, down, across]))?)
}
