//! Tensors printed like NumPy arrays.

use std::fmt;

use super::Tensor;
use super::compare::Number;
use crate::DType;

/// The number of elements above which only the edges are shown.
const THRESHOLD: usize = 1000;
/// The number of elements at each edge.
const EDGE: usize = 3;
/// The number of columns in a line.
const WIDTH: usize = 75;
/// The number of digits after the decimal point, unless the format sets it.
const PRECISION: usize = 8;

/// The numbers as NumPy prints them: row by row, with aligned decimal points.
///
/// Above 1,000 elements, only the first and last three along each axis are shown. A precision, as in `{:.3}`, limits
/// the digits after the decimal point. Waits for the device; if that fails, prints the error.
///
/// ```
/// use meganeura::prelude::*;
///
/// let x = Tensor::from_slice(&Device::cpu(), [2, 2], &[1.0, -2.5, 0.125, 100.0])?;
/// assert_eq!(x.to_string(), "[[  1.     -2.5  ]\n [  0.125 100.   ]]");
/// # Ok::<(), meganeura::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = match self.numbers() {
            Ok(numbers) => numbers,
            Err(error) => return write!(f, "{self:?}: {error}"),
        };
        let dims = self.shape().dims().to_vec();
        let summarised = numbers.len() > THRESHOLD;
        let shown = shown(&dims, summarised);
        let places: Vec<usize> = shown.iter().flatten().copied().collect();
        let dtype = self.ty().dtype;
        let shown: Vec<Number> = places.iter().map(|&place| numbers[place]).collect();
        let style = Style::of(&shown, dtype, f.precision().unwrap_or(PRECISION));
        let text = Text { dims: &dims, numbers: &numbers, style, summarised };
        let mut out = String::new();
        text.axis(&mut out, 0, 0);
        f.write_str(&out)
    }
}

/// The places of the elements to show, in order; `None` stands for omitted ones.
fn shown(dims: &[usize], summarised: bool) -> Vec<Option<usize>> {
    let Some((&extent, rest)) = dims.split_first() else { return vec![Some(0)] };
    let inner = shown(rest, summarised);
    let size: usize = rest.iter().product();
    let of = |at: Option<usize>| match at {
        Some(at) => inner.iter().map(|place| place.map(|place| at * size + place)).collect(),
        None => vec![None],
    };
    along(extent, summarised).into_iter().flat_map(of).collect()
}

/// The indices along an axis to show.
fn along(extent: usize, summarised: bool) -> Vec<Option<usize>> {
    if summarised && extent > 2 * EDGE {
        (0..EDGE).map(Some).chain([None]).chain((extent - EDGE..extent).map(Some)).collect()
    } else {
        (0..extent).map(Some).collect()
    }
}

/// The number format of all elements of a tensor.
enum Style {
    Integer {
        width: usize,
    },
    /// This many columns before the decimal point and digits after it, padded with blanks.
    Fixed {
        before: usize,
        after: usize,
        dtype: DType,
    },
    /// This many digits after the decimal point of the mantissa, padded with zeros.
    Exponent {
        width: usize,
        after: usize,
        dtype: DType,
    },
}

impl Style {
    fn of(numbers: &[Number], dtype: DType, precision: usize) -> Self {
        if !dtype.is_float() {
            let width = numbers.iter().map(|x| x.to_string().len()).max().unwrap_or(0);
            return Self::Integer { width };
        }
        let numbers: Vec<f64> = numbers.iter().map(|x| x.float()).collect();
        let magnitudes = || numbers.iter().map(|x| x.abs()).filter(|x| x.is_finite() && *x > 0.0);
        let (largest, smallest) = (magnitudes().fold(0.0, f64::max), magnitudes().fold(f64::INFINITY, f64::min));
        let finite = numbers.iter().copied().filter(|x| x.is_finite());
        let others = numbers.iter().filter(|x| !x.is_finite()).map(|x| spell(*x).len()).max().unwrap_or(0);
        if largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1000.0 {
            let digits = |x: f64| mantissa(x, dtype).0.split_once('.').map_or(0, |(_, digits)| digits.len());
            let after = finite.clone().map(digits).max().unwrap_or(0).min(precision);
            let width = finite.map(|x| exponent(x, after, dtype).len()).max().unwrap_or(0).max(others);
            return Self::Exponent { width, after, dtype };
        }
        let (mut before, mut after) = (0, 0);
        for x in finite {
            let text = fixed(x, precision, dtype);
            let (whole, digits) = text.split_once('.').unwrap_or((&text, ""));
            (before, after) = (before.max(whole.len()), after.max(digits.len()));
        }
        Self::Fixed { before: before.max(others.saturating_sub(after + 1)), after: after.min(precision), dtype }
    }

    fn write(&self, number: Number) -> String {
        let x = number.float();
        match *self {
            Self::Integer { width } => format!("{number:>width$}"),
            Self::Fixed { before, after, .. } if !x.is_finite() => format!("{:>1$}", spell(x), before + 1 + after),
            Self::Fixed { before, after, dtype } => {
                let text = fixed(x, after, dtype);
                let (whole, digits) = text.split_once('.').unwrap_or((&text, ""));
                format!("{whole:>before$}.{digits:<after$}")
            }
            Self::Exponent { width, .. } if !x.is_finite() => format!("{:>width$}", spell(x)),
            Self::Exponent { width, after, dtype } => format!("{:>width$}", exponent(x, after, dtype)),
        }
    }
}

fn spell(x: f64) -> &'static str {
    match x {
        x if x.is_nan() => "nan",
        x if x > 0.0 => "inf",
        _ => "-inf",
    }
}

/// The fewest digits that identify the number, but at most `precision` after the decimal point.
#[expect(clippy::cast_possible_truncation, reason = "the number was an f32")]
fn fixed(x: f64, precision: usize, dtype: DType) -> String {
    let text = if dtype == DType::F64 { format!("{x}") } else { format!("{}", x as f32) };
    if text.split_once('.').is_none_or(|(_, digits)| digits.len() <= precision) {
        return text;
    }
    let rounded = format!("{x:.precision$}");
    if rounded.contains('.') { rounded.trim_end_matches('0').trim_end_matches('.').to_owned() } else { rounded }
}

/// The mantissa in the fewest digits that identify the number, and the exponent.
#[expect(clippy::cast_possible_truncation, reason = "the number was an f32")]
fn mantissa(x: f64, dtype: DType) -> (String, String) {
    let text = if dtype == DType::F64 { format!("{x:e}") } else { format!("{:e}", x as f32) };
    let (mantissa, exponent) = text.split_once('e').expect("an exponent was asked for");
    (mantissa.to_owned(), exponent.to_owned())
}

fn exponent(x: f64, after: usize, dtype: DType) -> String {
    let (mut digits, mut power) = mantissa(x, dtype);
    if digits.split_once('.').is_some_and(|(_, digits)| digits.len() > after) {
        let rounded = format!("{x:.after$e}");
        let (mantissa, exponent) = rounded.split_once('e').expect("an exponent was asked for");
        (digits, power) = (mantissa.to_owned(), exponent.to_owned());
    }
    if !digits.contains('.') {
        digits.push('.');
    }
    let missing = after - digits.split_once('.').map_or(0, |(_, digits)| digits.len());
    digits.push_str(&"0".repeat(missing));
    let (sign, power) = power.strip_prefix('-').map_or(('+', &power[..]), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

/// The text of a tensor.
struct Text<'a> {
    dims: &'a [usize],
    numbers: &'a [Number],
    style: Style,
    summarised: bool,
}

impl Text<'_> {
    /// Writes the content of an axis, starting from element `first`.
    fn axis(&self, out: &mut String, axis: usize, first: usize) {
        let Some(&extent) = self.dims.get(axis) else {
            out.push_str(&self.style.write(self.numbers[first]));
            return;
        };
        let is_last = axis + 1 == self.dims.len();
        let size: usize = self.dims[axis + 1..].iter().product();
        let indent = " ".repeat(axis + 1);
        out.push('[');
        let mut column = indent.len();
        for (k, at) in along(extent, self.summarised).into_iter().enumerate() {
            let mut item = String::new();
            match at {
                Some(at) => self.axis(&mut item, axis + 1, first + at * size),
                None => item.push_str("..."),
            }
            if k > 0 && !is_last {
                // One line break for each axis inside this one.
                out.push_str(&"\n".repeat(self.dims.len() - axis - 1));
                out.push_str(&indent);
            } else if k > 0 {
                if column + 1 + item.len() > WIDTH {
                    out.push('\n');
                    out.push_str(&indent);
                    column = indent.len();
                } else {
                    out.push(' ');
                    column += 1;
                }
            }
            column += item.len();
            out.push_str(&item);
        }
        out.push(']');
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Precision, Result, Tensor};

    fn text(shape: &[usize], data: &[f32]) -> String {
        Tensor::from_slice(&Device::cpu(), crate::Shape::new(shape), data).unwrap().to_string()
    }

    /// The output of NumPy 2 for the same `float32` arrays.
    #[test]
    fn numbers_look_as_in_numpy() -> Result<()> {
        assert_eq!(text(&[3], &[1.0, 2.0, 3.0]), "[1. 2. 3.]");
        assert_eq!(text(&[2], &[1.5, 2.25]), "[1.5  2.25]");
        assert_eq!(text(&[2], &[0.1, -12.0]), "[  0.1 -12. ]");
        assert_eq!(text(&[2], &[1e-5, 1.25]), "[1.00e-05 1.25e+00]");
        assert_eq!(text(&[2], &[1e10, 0.0]), "[1.e+10 0.e+00]");
        assert_eq!(text(&[3], &[f32::NAN, f32::INFINITY, -1.5]), "[ nan  inf -1.5]");
        assert_eq!(text(&[1], &[1.0 / 3.0]), "[0.33333334]");
        assert_eq!(text(&[], &[2.5]), "2.5");
        assert_eq!(text(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]), "[[[1. 2.]\n  [3. 4.]]]");
        assert_eq!(text(&[2, 1, 1], &[1.0, 2.0]), "[[[1.]]\n\n [[2.]]]");
        let double = Device::cpu().with_precision(Precision::Double)?;
        assert_eq!(Tensor::from_f64(&double, [1], &[1.0 / 3.0])?.to_string(), "[0.33333333]");
        assert_eq!(Tensor::indices(&Device::cpu(), [3], &[1, 20, 3])?.to_string(), "[ 1 20  3]");
        let third = Tensor::from_slice(&Device::cpu(), [2], &[1.0 / 3.0, 2.0])?;
        assert_eq!(format!("{third:.2}"), "[0.33 2.  ]");
        assert_eq!(format!("{:.0}", Tensor::from_slice(&Device::cpu(), [1], &[100.3])?), "[100.]");
        Ok(())
    }

    #[test]
    fn long_rows_wrap_and_large_tensors_show_their_edges() -> Result<()> {
        let device = Device::cpu();
        let lines = Tensor::arange(&device, 0.0, 40.0, 1.0)?.to_string();
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0], "[ 0.  1.  2.  3.  4.  5.  6.  7.  8.  9. 10. 11. 12. 13. 14. 15. 16. 17.");
        assert_eq!(lines[2], " 36. 37. 38. 39.]");
        let large = Tensor::arange(&device, 0.0, 2000.0, 1.0)?;
        assert_eq!(large.to_string(), "[0.000e+00 1.000e+00 2.000e+00 ... 1.997e+03 1.998e+03 1.999e+03]");
        let image = Tensor::zeros(&device, [100, 100])?.to_string();
        assert_eq!(image.lines().count(), 7);
        assert_eq!(image.lines().nth(3), Some(" ..."));
        assert!(image.starts_with("[[0. 0. 0. ... 0. 0. 0.]\n"), "{image}");
        Ok(())
    }
}
