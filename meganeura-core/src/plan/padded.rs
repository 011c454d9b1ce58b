//! The lines of rows that zeros fill up, in WGSL: what a program needs to know of a line, where it reads a line of an
//! operand in `f32`, and which elements it stores.

use std::fmt::Write as _;

use crate::kernel::launch::{LINE, PaddedRows};
use crate::kernel::offset::offset;
use crate::{Layout, Shape};

/// Declares, for the line at place `i` in memory, its row `r`, its first element `q` in the row, and `z`: whether it is
/// the last line of the row, with zeros. All names have a suffix.
pub(super) fn variables(rows: PaddedRows, suffix: &str) -> String {
    let (len, pitch) = (rows.len, rows.pitch());
    format!(
        "    let r{suffix} = i{suffix} / {pitch}u;\n    let q{suffix} = i{suffix} % {pitch}u;\n    \
         let z{suffix} = q{suffix} + {LINE}u > {len}u;\n"
    )
}

/// The number of element `e` of the line, in the order of the API.
pub(super) fn index(rows: PaddedRows, e: usize, suffix: &str) -> String {
    format!("(r{suffix} * {}u + q{suffix} + {e}u)", rows.len)
}

/// The condition under which a line has element `e`; `None` if all have it.
pub(super) fn condition(rows: PaddedRows, e: usize, suffix: &str) -> Option<String> {
    (e >= rows.tail()).then(|| format!("!z{suffix}"))
}

/// The words of a line of bf16, with zeros for the padding.
pub(super) fn masked(rows: PaddedRows, words: &str, suffix: &str) -> String {
    let word = |k: usize| match rows.tail().saturating_sub(2 * k) {
        0 => "0u",
        1 => "0xffffu",
        _ => "0xffffffffu",
    };
    let [a, b, c, d] = [0, 1, 2, 3].map(word);
    format!("{words} & select(vec4(0xffffffffu), vec4({a}, {b}, {c}, {d}), z{suffix})")
}

/// The statements that read a line of an operand in `f32` from the buffer `source`, into variables that begin with
/// `name`. For the padding, they read the last element of the row again.
pub(super) fn read(rows: PaddedRows, layout: &Layout, source: &str, name: &str, suffix: &str) -> String {
    let within = |e: usize| match e.checked_sub(rows.tail()) {
        None => format!("{e}u"),
        Some(_) => format!("select({e}u, {}u, z{suffix})", rows.tail() - 1),
    };
    let mut line = String::new();
    let Some((of_rows, of_elements)) = split(rows, layout) else {
        for e in 0..LINE {
            let number = format!("(r{suffix} * {}u + q{suffix} + {})", rows.len, within(e));
            let _ = writeln!(line, "    let {name}_{e} = {source}[{}];", offset(layout, &number));
        }
        return line;
    };
    let first = format!("p_{name}");
    let _ = writeln!(line, "    let {first} = {};", offset(&of_rows, &format!("r{suffix}")));
    if of_elements.strides().iter().all(|&stride| stride == 0) {
        let _ = writeln!(line, "    let {name}_0 = {source}[{first}];");
        (1..LINE).for_each(|e| _ = writeln!(line, "    let {name}_{e} = {name}_0;"));
        return line;
    }
    for e in 0..LINE {
        let place = offset(&of_elements, &format!("(q{suffix} + {})", within(e)));
        let _ = writeln!(line, "    let {name}_{e} = {source}[{first} + {place}];");
    }
    line
}

/// The layouts of the rows, and of the elements of each, if both are views of the operand.
fn split(rows: PaddedRows, layout: &Layout) -> Option<(Layout, Layout)> {
    let at_axis = |layout: &Layout| {
        let shape = layout.shape();
        let dims = shape.dims();
        let axis = (0..dims.len()).rev().find(|&axis| dims[axis..].iter().product::<usize>() == rows.len)?;
        Some(layout.split(&(axis..dims.len()).collect::<Vec<_>>()))
    };
    let elements = layout.shape().elements();
    at_axis(layout).or_else(|| at_axis(&layout.reshape(Shape::from([elements / rows.len, rows.len]))?))
}
