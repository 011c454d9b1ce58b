//! Lines that zeros fill up, in WGSL: what a program needs to know of a line of a padded row, where it reads one of an
//! operand in `f32`, and which elements of any line it stores.

use std::fmt::Write as _;

use crate::kernel::launch::{Format, LINE, PaddedRows};
use crate::kernel::offset::offset;
use crate::{Layout, Shape};

/// Declares `z`, whether the line at place `i` in memory has zeros; nothing if no line of the format has. Names have a
/// suffix.
pub(super) fn zeros(order: Format, suffix: &str) -> String {
    order.has_zeros(&format!("i{suffix}")).map_or_else(String::new, |has| format!("    let z{suffix} = {has};\n"))
}

/// Declares, for the line at place `i` in memory, its row `r` and its first element `q` in the row. All names have a
/// suffix.
pub(super) fn variables(rows: PaddedRows, suffix: &str) -> String {
    let pitch = rows.pitch();
    format!("    let r{suffix} = i{suffix} / {pitch}u;\n    let q{suffix} = i{suffix} % {pitch}u;\n")
}

/// The number of element `e` of the line, in the order of the API.
pub(super) fn index(rows: PaddedRows, e: usize, suffix: &str) -> String {
    format!("(r{suffix} * {}u + q{suffix} + {e}u)", rows.len)
}

/// The condition under which a line has element `e`; `None` if all have it.
pub(super) fn condition(order: Format, e: usize, suffix: &str) -> Option<String> {
    order.tail().filter(|&tail| e >= tail).map(|_| format!("!z{suffix}"))
}

/// The words of a line of bf16, with zeros for the padding.
pub(super) fn masked(order: Format, words: String, suffix: &str) -> String {
    let Some(tail) = order.tail() else { return words };
    let word = |k: usize| match tail.saturating_sub(2 * k) {
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
