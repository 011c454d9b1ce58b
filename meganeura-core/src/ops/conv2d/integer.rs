//! Convolutions of bytes, as products of weights and pixels that are read in place: see [`Sorted`]. A product's terms
//! are the taps of four channels each.

use std::sync::Arc;

#[cfg(feature = "onnx")]
use super::geometry;
use super::sorted::Sorted;
use super::{AnyConvOptions, ConvShape};
use crate::host::HostBuffer;
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{
    self, Accumulate, Apart, BYTES, Block, Finish, ONES, OutView, Plain, Real, Run, Scratch, Shared, View, sum_of,
    words,
};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::ops::integer_products::{Bytes, Columns, Destination, Panel, Products, Row, expect_types, whole};
use crate::ops::{Kernel, Primitive};
use crate::{DType, Result, TensorType};

/// Convolution of bytes with zero points: as [`Conv`](super::Conv) of `x − zx` and `w − zw`, with a bias, and with sums
/// of `i32` that wrap around.
///
/// Shapes: `x [N,C,…]`, `w [O,C/g,…]`, `zx [1]`, `zw [O]`, whole floats, `bias i32 [O]` → `y [N,O,…]`, `i32` or rounded
/// to floats. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvInteger {
    pub(crate) options: AnyConvOptions,
    /// Those of `x` and of `w`.
    pub(crate) bytes: [Bytes; 2],
    pub(crate) result: DType,
}

impl Primitive for ConvInteger {
    fn name(&self) -> &'static str {
        self.options.named(["conv1d_integer", "conv2d_integer", "conv3d_integer"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [input, w, zx, zw, bias] = x else { return Err(format!("takes five operands, not {}", x.len())) };
        expect_types(&x[..4], self.result)?;
        let geometry = ConvShape::new(input.shape, w.shape, self.options)?;
        if zx.shape.dims() != [1] || zw.shape.dims() != [geometry.o] || bias.shape.dims() != [geometry.o] {
            return Err(format!(
                "the zero points must be [1] and [{}], the bias likewise, they are {}, {} and {}",
                geometry.o, zx.shape, zw.shape, bias.shape
            ));
        }
        if bias.dtype != DType::I32 {
            return Err(format!("needs a bias of i32, not of {}", bias.dtype));
        }
        Ok(vec![TensorType::new(self.result, geometry.output())])
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        y[0].shape.elements() as u64 * super::kernel_elements(x[1].shape)
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Its operands have no sign, and the weight one zero point: others are those of a weight of ones.
        let dtype = x[0].ty.dtype;
        let unsigned = |to: &mut Form, x: &form::Operand, bytes: Bytes| match bytes {
            Bytes::Unsigned => to.bytes(x.value),
            Bytes::Signed => {
                let shift = to.float(dtype, 128.0);
                let shifted = to.node("Add", &[x.value, shift], Vec::new());
                to.bytes(shifted)
            }
        };
        let attributes = geometry::onnx(self.options, x[1].ty.shape);
        let [input, w] = [0, 1].map(|k| unsigned(to, &x[k], self.bytes[k]));
        let zero = unsigned(to, &x[2], self.bytes[0]);
        let zero = to.reshape(zero, crate::Shape::SCALAR);
        let sums = to.node("ConvInteger", &[input, w, zero], attributes.clone());
        let one = to.float(dtype, 1.0);
        let extents = to.ints(form::ints(x[1].ty.shape.dims()));
        let ones = to.node("Expand", &[one, extents], Vec::new());
        let ones = to.bytes(ones);
        let of_ones = to.node("ConvInteger", &[input, ones, zero], attributes);
        // The zero points of the weight without signs.
        let shift = to.float(dtype, if self.bytes[1] == Bytes::Signed { 128.0 } else { 0.0 });
        let zeros = to.node("Add", &[x[3].value, shift], Vec::new());
        let zeros = to.cast(zeros, DType::I32);
        let channels = |to: &mut Form, x: form::Value| {
            let mut dims = vec![1; y[0].shape.rank()];
            dims[1] = y[0].shape[1];
            to.reshape(x, crate::Shape::new(&dims))
        };
        let (zeros, bias) = (channels(to, zeros), channels(to, x[4].value));
        let product = to.node("Mul", &[of_ones, zeros], Vec::new());
        let difference = to.node("Sub", &[sums, product], Vec::new());
        let sums = to.node("Add", &[difference, bias], Vec::new());
        form::only(if self.result == DType::I32 { sums } else { to.cast(sums, y[0].dtype) })
    }
}

impl Kernel for ConvInteger {
    fn stores(&self) -> bool {
        true
    }

    fn finishes(&self) -> bool {
        self.result.is_float()
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        self.cpu_finishing(x, y, &Plain, scratch);
    }

    fn cpu_finishing<T: Real>(
        &self,
        x: &[View<'_, T>],
        y: &mut [OutView<'_, T>],
        finish: &dyn Finish<T>,
        scratch: &Scratch,
    ) {
        let g = ConvShape::new(x[0].layout().shape(), x[1].layout().shape(), self.options);
        let g = g.expect("checked when recorded");
        let bias = &x[4].integers::<i32>()[..g.o];
        let destination = Destination::new(&mut y[0], finish);
        // The memory of an operand may be longer.
        let floats = |k: usize| &x[k].floats()[..x[k].layout().shape_ref().elements()];
        let [pixels, w, zero, zeros] = [0, 1, 2, 3].map(floats);
        let weight = Weight { g: &g, bytes: self.bytes[1], quads: (g.c / g.groups).div_ceil(BYTES) };
        let prepared: Option<Arc<HostBuffer>> = scratch.prepared::<f32>(1, weight.len(), |to| weight.pack(w, to));
        let mut packed = None;
        let words: &[u32] = bytemuck::cast_slice(match &prepared {
            Some(prepared) => f32::slice(prepared),
            None => {
                let Some(mut memory) = scratch.borrow::<f32>(weight.len()) else { return };
                weight.pack(w, &mut memory);
                packed.insert(memory)
            }
        });
        let mut singles = None;
        let pixels = match T::singles(pixels) {
            Some(pixels) => pixels,
            None => {
                let Some(mut memory) = scratch.borrow::<f32>(pixels.len()) else { return };
                #[expect(clippy::cast_possible_truncation, reason = "bytes")]
                memory.iter_mut().zip(pixels).for_each(|(to, x)| *to = x.to_f64() as f32);
                singles.insert(memory)
            }
        };
        let zero = whole(zero[0]) - i32::from(self.bytes[0].least());
        let zeros: Vec<i32> = zeros.iter().map(|&zero| whole(zero) - i32::from(self.bytes[1].middle())).collect();
        let products = Convolution::new(&g, self.bytes[0], weight.quads, words, (zero, &zeros, bias));
        products.compute(pixels, &destination, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let g = ConvShape::new(x[0].ty.shape, x[1].ty.shape, self.options).expect("checked when recorded");
        let extents = [g.n * g.groups, g.o / g.groups, g.outputs(), g.patch()];
        Products { form: "conv", extents, defines: g.defines(), operands: 5 }.variants(caps)
    }
}

/// A weight as words `[O, quad of channels, tap]`, and then the sums of the channels' bytes.
struct Weight<'a> {
    g: &'a ConvShape,
    bytes: Bytes,
    /// Of the channels of a group.
    quads: usize,
}

impl Weight<'_> {
    fn len(&self) -> usize {
        self.g.o * (self.quads * self.g.taps() + 1)
    }

    fn pack<T: Real>(&self, w: &[T], to: &mut [f32]) {
        let (g, taps) = (self.g, self.g.taps());
        let to: &mut [u32] = bytemuck::cast_slice_mut(to);
        let (all, sums) = to.split_at_mut(g.o * self.quads * taps);
        let channels = w.chunks_exact(g.patch()).zip(all.chunks_exact_mut(self.quads * taps)).zip(sums);
        for ((w, to), sum) in channels {
            let mut of_channel = 0;
            for tap in 0..taps {
                let byte = |x: T| (whole(x) - i32::from(self.bytes.middle())).to_le_bytes()[0];
                let channels: Vec<u8> = w.iter().skip(tap).step_by(taps).map(|&x| byte(x)).collect();
                for (quad, word) in words(channels.into_iter()).enumerate() {
                    to[quad * taps + tap] = word;
                    of_channel += sum_of(word, true);
                }
            }
            *sum = i32::cast_unsigned(of_channel);
        }
    }
}

/// The most pixels of a panel.
const PIXELS: usize = 256;

/// Output channels that are computed at once: their sums stay in the L1 cache with a panel's rows.
const ROWS: usize = Block::ROWS;

/// Images and groups from which each is a task of its own.
const TASKS: usize = 8;

/// The products of a convolution.
struct Convolution<'a> {
    g: &'a ConvShape,
    bytes: Bytes,
    sorted: Sorted,
    /// Channels of a group, in words.
    quads: usize,
    /// Where each term of the first output is.
    places: Vec<usize>,
    weight: &'a [u32],
    /// The byte of padding, four times.
    padding: u32,
    /// What is added to each output channel's sums.
    rows: Vec<Row>,
    /// Columns of a layer, and of a panel.
    pixels: usize,
    panel: usize,
}

impl<'a> Convolution<'a> {
    /// `words` are those of a [`Weight`]; then the zero point of the pixels, those of the weight, and the bias.
    fn new(
        g: &'a ConvShape,
        bytes: Bytes,
        quads: usize,
        words: &'a [u32],
        (zero, zeros, bias): (i32, &[i32], &[i32]),
    ) -> Self {
        let sorted = Sorted::new(g);
        let places = (0..quads).flat_map(|quad| sorted.taps.iter().map(move |tap| quad * sorted.len + tap)).collect();
        let (weight, sums) = words.split_at(g.o * quads * g.taps());
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "sums wrap around")]
        let terms = g.patch() as i32;
        let row = |((&sum, &of_weight), &bias): ((&u32, &i32), &i32)| {
            let products = terms.wrapping_mul(of_weight).wrapping_sub(sum.cast_signed()).wrapping_mul(zero);
            Row { constant: products.wrapping_add(bias), of_sums: -of_weight, of_zeros: 0 }
        };
        let rows = sums.iter().zip(zeros).zip(bias).map(row).collect();
        let pixels = sorted.columns();
        // Panels of nearly one size.
        let panel = pixels.div_ceil(pixels.div_ceil(PIXELS)).next_multiple_of(Block::COLUMNS);
        let padding = u32::from_le_bytes([zero.to_le_bytes()[0]; BYTES]);
        Self { g, bytes, sorted, quads, places, weight, padding, rows, pixels, panel }
    }

    fn compute<T: Real>(&self, x: &[f32], destination: &Destination<'_, T>, scratch: &Scratch) {
        let g = self.g;
        let (images, channels, inputs) = (g.n * g.groups, g.c / g.groups, g.inputs());
        let (rows, panels) = (g.o / g.groups, g.depth.outputs * self.pixels.div_ceil(self.panel));
        let len = self.quads * self.sorted.len;
        let pack = |image: usize, quad: usize, to: &mut [u32]| {
            let first = image * channels + quad * BYTES;
            let count = BYTES.min(channels - quad * BYTES);
            to.fill(self.padding);
            let pixels = &x[first * inputs..][..count * inputs];
            self.sorted.copy_bytes(pixels, f32::from(self.bytes.least()), to, pulp::Arch::new());
        };
        let memory =
            || Memory { sums: scratch.borrow((ROWS + 1) * self.panel), values: scratch.borrow(ROWS * self.panel) };
        let work = |rows: usize| g.patch().div_ceil(BYTES) * rows * self.panel;
        if images >= TASKS {
            let memory = || (scratch.borrow::<f32>(len), memory());
            return native::tasks(images, work(rows) * panels, &memory, &|image, (pixels, memory)| {
                let Some(pixels) = pixels else { return };
                let pixels: &mut [u32] = bytemuck::cast_slice_mut(pixels);
                pixels.chunks_exact_mut(self.sorted.len).enumerate().for_each(|(quad, to)| pack(image, quad, to));
                (0..panels).for_each(|panel| self.panel(image, (panel, 0, 1), pixels, memory, destination));
            });
        }
        let Some(mut pixels) = scratch.borrow::<f32>(len) else { return };
        let pixels: &mut [u32] = bytemuck::cast_slice_mut(&mut pixels);
        // The rows of a few panels are divided, for threads.
        let parts = (2 * rayon::current_num_threads()).div_ceil(panels).min(rows.div_ceil(Block::ROWS));
        for image in 0..images {
            let quads = Shared::new(&mut *pixels);
            native::tasks(self.quads, BYTES * inputs, &|| (), &|quad, ()| {
                // SAFETY: these channels belong to this task alone.
                pack(image, quad, unsafe { quads.part(quad * self.sorted.len, self.sorted.len) });
            });
            native::tasks(panels * parts, work(rows.div_ceil(parts)), &memory, &|task, memory| {
                self.panel(image, (task / parts, task % parts, parts), pixels, memory, destination);
            });
        }
    }

    /// Computes a panel of an image and group: one of so many parts of the rows.
    fn panel<T: Real>(
        &self,
        image: usize,
        (panel, part, parts): (usize, usize, usize),
        pixels: &[u32],
        memory: &mut Memory<'_, T>,
        destination: &Destination<'_, T>,
    ) {
        let (Some(sums), Some(values)) = (&mut memory.sums, &mut memory.values) else { return };
        let g = self.g;
        let (rows, terms, of_layer) = (g.o / g.groups, self.places.len(), self.pixels.div_ceil(self.panel));
        let (layer, first) = (panel / of_layer, panel % of_layer * self.panel);
        let columns = self.panel.min(self.pixels - first);
        let here = rows * part / parts..rows * (part + 1) / parts;
        let (of_columns, sums) = bytemuck::cast_slice_mut::<f32, i32>(sums).split_at_mut(self.panel);
        let multiply = |count: usize, a: &[u32], c: &mut [i32]| {
            let product = Block {
                extents: [count, columns, terms],
                a,
                a_rows: Apart(terms),
                a_terms: Apart(1),
                b: &pixels[layer * self.sorted.layer..],
                b_terms: self.sorted.lines(&self.places, first),
                c,
                c_stride: self.panel,
                accumulate: Accumulate::No,
            };
            product.multiply_bytes(pulp::Arch::new());
        };
        let group = image % g.groups * rows;
        if self.rows[group..][..rows].iter().any(|row| row.of_sums != 0) {
            multiply(1, &self.ones(), of_columns);
        }
        let lines = self.sorted.runs(first, columns);
        for row in here.clone().step_by(ROWS) {
            let (count, channel) = (ROWS.min(here.end - row), group + row);
            multiply(count, &self.weight[channel * terms..], sums);
            let of_columns = Columns { sums: of_columns, zeros: &[] };
            let corrections = &self.rows[channel..][..count];
            let panel = Panel { sums, stride: self.panel, columns, rows: corrections, of_columns };
            let mut runs = Runs { lines: &lines, line: 0, at: 0, stride: self.panel, first: 0, plane: g.outputs() };
            runs.first = (image * rows + row) * runs.plane + layer * g.p * g.q;
            let mut runs = runs.take(count * lines.len());
            // SAFETY: these pixels of these channels belong to this task alone.
            unsafe { destination.store(panel, values, &mut runs) };
        }
    }

    /// A weight whose channels are all 1, and 0 where there are none.
    fn ones(&self) -> Vec<u32> {
        let (channels, taps) = (self.g.c / self.g.groups, self.g.taps());
        let quad = |quad: usize| match channels - quad * BYTES {
            rest @ 1..BYTES => ONES >> (8 * (BYTES - rest)),
            _ => ONES,
        };
        (0..self.quads * taps).map(|term| quad(term / taps)).collect()
    }
}

/// The lines of one channel after the other.
struct Runs<'a> {
    lines: &'a [Run],
    /// The next line.
    line: usize,
    /// The first place of the channel, and the distance of channels.
    at: usize,
    stride: usize,
    /// The first element of the channel in the result, and the number of its elements.
    first: usize,
    plane: usize,
}

impl Iterator for Runs<'_> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        if self.line == self.lines.len() {
            (self.line, self.at, self.first) = (0, self.at + self.stride, self.first + self.plane);
        }
        let Run { first, at, len } = self.lines[self.line];
        self.line += 1;
        Some(Run { first: self.first + first, at: self.at + at, len })
    }
}

/// The memory of a thread: sums of columns and rows, and the floats that they become.
struct Memory<'a, T> {
    sums: Option<native::Borrowed<'a, f32>>,
    values: Option<native::Borrowed<'a, T>>,
}
