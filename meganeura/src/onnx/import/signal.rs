//! Fourier transforms, as products with matrices of cosines and sines.

use super::call::{Call, Operators};
use super::value::{Value, sound};
use crate::error::bail;
use crate::host::reserve;
use crate::{Result, Tensor, Var};

pub(super) const OPERATORS: Operators = &[("DFT", dft), ("STFT", stft)];

/// Cosines and sines of `2π·n·k/length`, `[rows, columns]`.
fn waves(call: &Call<'_>, rows: usize, columns: usize, length: usize) -> Result<[Var; 2]> {
    let count = rows.saturating_mul(columns);
    call.budget.charge(count.saturating_mul(2))?;
    let matrix = |f: fn(f64) -> f64| -> Result<Var> {
        let mut numbers = Vec::new();
        reserve(&mut numbers, count)?;
        for n in 0..rows {
            // Whole turns are left out, so that the angle is exact.
            numbers.extend((0..columns).map(|k| f(std::f64::consts::TAU * (n * k % length) as f64 / length as f64)));
        }
        let tensor = Tensor::from_f64(&call.tape.device(), call.shape(&[rows, columns])?, &numbers)?;
        sound(call.tape.input(&tensor))
    };
    Ok([matrix(f64::cos)?, matrix(f64::sin)?])
}

/// The real and the imaginary part of the transform along the last axis, which is cut or padded to this length. With
/// `columns`, only the first results.
fn forward(call: &Call<'_>, re: &Var, im: Option<&Var>, length: usize, columns: usize) -> Result<[Var; 2]> {
    let rows = re.shape().dims().last().copied().unwrap_or(0).min(length);
    let cut = |x: &Var| x.slice(x.shape().rank() - 1, 0..rows);
    let [cos, sin] = waves(call, rows, columns, length)?;
    let (re, im) = (cut(re), im.map(cut));
    Ok(match im {
        None => [re.matmul(&cos), -re.matmul(&sin)],
        Some(im) => [re.matmul(&cos) + im.matmul(&sin), im.matmul(&cos) - re.matmul(&sin)],
    })
}

/// The two parts of numbers whose last axis holds one or both.
fn parts(x: &Var) -> Result<(Var, Option<Var>)> {
    let shape = x.shape();
    let Some((&width, outer)) = shape.dims().split_last() else { bail!(Checkpoint, "a signal without axes") };
    let part = |k: usize| x.slice(shape.rank() - 1, k..k + 1).reshape(outer);
    match width {
        1 => Ok((part(0), None)),
        2 => Ok((part(0), Some(part(1)))),
        _ => bail!(Checkpoint, "the last axis of {shape} holds neither real nor complex numbers"),
    }
}

/// A positive operand of one integer.
fn length(call: &Call<'_>, k: usize) -> Result<Option<usize>> {
    match call.optional_ints(k)?.as_deref() {
        None => Ok(None),
        Some(&[number]) if (1..1 << 20).contains(&number) => Ok(usize::try_from(number).ok()),
        Some(numbers) => bail!(Checkpoint, "operand {k} is {numbers:?}, not a length"),
    }
}

fn dft(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let rank = x.shape().rank();
    let axis = match call.optional(2) {
        Some(_) => match call.ints(2)?[..] {
            [axis] => axis,
            ref axes => bail!(Checkpoint, "{} axes, not one", axes.len()),
        },
        None if call.opset < 20 => call.int("axis", 1)?,
        None => -2,
    };
    let axis = call.axis(axis, rank)?;
    if axis + 1 == rank {
        bail!(Checkpoint, "axis {axis} holds the parts of complex numbers");
    }
    let (re, im) = parts(&x)?;
    let mut axes: Vec<_> = (0..rank - 1).collect();
    axes[axis..].rotate_left(1);
    let (re, im) = (re.permute(&axes), im.map(|im| im.permute(&axes)));
    let extent = x.shape()[axis];
    let (one_sided, inverse) = (call.flag("onesided", false)?, call.flag("inverse", false)?);
    let given = length(call, 1)?;
    let results = if !inverse {
        let length = given.unwrap_or(extent);
        let columns = if one_sided { length / 2 + 1 } else { length };
        forward(call, &re, im.as_ref(), length, columns)?.to_vec()
    } else if one_sided {
        let length = given.unwrap_or(2 * extent.saturating_sub(1).max(1));
        // The other half is conjugate, so that the result is real.
        let rows = extent.min(length / 2 + 1);
        let [cos, sin] = waves(call, rows, length, length)?;
        let mut weights = vec![2.0 / length as f64; rows];
        weights[0] = 1.0 / length as f64;
        if length.is_multiple_of(2) && rows == length / 2 + 1 {
            weights[rows - 1] = 1.0 / length as f64;
        }
        let weights = call.tape.input(&Tensor::from_f64(&call.tape.device(), [rows], &weights)?);
        let half = |x: &Var| x.slice(rank - 2, 0..rows) * &weights;
        let y = half(&re).matmul(&cos);
        vec![match &im {
            Some(im) => y - half(im).matmul(&sin),
            None => y,
        }]
    } else {
        let length = given.unwrap_or(extent);
        // The conjugate of the transform of the conjugate.
        let [re, im] = forward(call, &re, im.map(|im| -im).as_ref(), length, length)?;
        let scale = (length as f64).recip();
        vec![re.scale(scale), im.scale(-scale)]
    };
    let mut back: Vec<_> = (0..rank - 1).collect();
    back[axis..].rotate_right(1);
    let results: Vec<_> = results.iter().map(|part| part.permute(&back)).collect();
    call.floats(Var::stack(&results.iter().collect::<Vec<_>>(), rank - 1))
}

/// Transforms of frames of a signal `[N, L, 1 or 2]`: `[N, frames, bins, 2]`
fn stft(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let [n, total, _] = *x.shape().dims() else { bail!(Checkpoint, "a signal {}, not [N, L, 1 or 2]", x.shape()) };
    let Some(step) = length(call, 1)? else { bail!(Checkpoint, "operand 1, the step, is missing") };
    let window = call.optional_float(2)?;
    let of_window = window.as_ref().map(|window| window.shape().elements());
    let Some(size) = length(call, 3)?.or(of_window).filter(|size| of_window.is_none_or(|own| own == *size)) else {
        bail!(Checkpoint, "it needs a window or the length of a frame, and both must agree");
    };
    let Some(frames) = total.checked_sub(size).map(|rest| rest / step + 1) else {
        bail!(Checkpoint, "frames of {size} in a signal of {total}");
    };
    call.budget.charge(frames.saturating_mul(size))?;
    let mut places = Vec::new();
    reserve(&mut places, frames * size)?;
    for frame in 0..frames {
        places.extend((0..size).map(|k| u32::try_from(frame * step + k).unwrap_or(u32::MAX)));
    }
    let index = call.tape.input(&Tensor::indices(&call.tape.device(), [places.len()], &places)?);
    let framed = |x: &Var| -> Result<Var> {
        let frames = sound(x.index_select(1, &index))?.reshape([n, frames, size]);
        Ok(match &window {
            Some(window) => frames * window.reshape([size]),
            None => frames,
        })
    };
    let (re, im) = parts(&x)?;
    let im = im.as_ref().map(framed).transpose()?;
    let columns = if call.flag("onesided", true)? { size / 2 + 1 } else { size };
    let [re, im] = forward(call, &framed(&re)?, im.as_ref(), size, columns)?;
    call.floats(Var::stack(&[&re, &im], 3))
}
