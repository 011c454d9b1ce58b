//! Convolutions on the CPU in single precision, as products of weights and pixels that are read in place: see
//! [`Sorted`]. A product's columns are neighbouring pixels of a layer, its terms the taps of a group's channels. Images
//! of few pixels have output channels as columns instead, if the weights stay the same: see [`Strips`]. Both give the
//! same bits.

use super::ConvShape;
use super::sorted::{Part, Sorted, Terms, copy_row};
use super::strips::{FEW, Pixels, Strips};
use crate::kernel::native::{
    Accumulate, Apart, Block, Finish, Finished, Lines, Places, Real, Run, Scratch, Shared, parallel, tasks,
};
use crate::ops::Conv2dOptions;

/// The most pixels of a panel: the sums of a few hundred channels stay in the L2 cache.
const PIXELS: usize = 112;

/// Terms of a sum from which it matters more how weights are read than how results are stored.
const DEEP: usize = 160;

/// Images and groups from which each is a task of its own.
const TASKS: usize = 8;

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], finish: &dyn Finish<f32>, scratch: &Scratch) {
    let (strips, images) = (Strips::new(g), g.n * g.groups);
    let is_stored_once = g.patch() < DEEP && g.q >= Block::COLUMNS && finish.affine().is_some();
    let weights = if images < TASKS && !is_stored_once { strips.prepared(w, scratch) } else { None };
    let Conv2dOptions { stride, padding, dilation, .. } = g.options();
    let is_apart = g.depth.is_flat()
        && padding == [0, 0]
        && dilation == [1, 1]
        && stride[0] >= g.kernel[0]
        && stride[1] >= g.kernel[1];
    if let (Some(weights), true) = (&weights, is_apart) {
        return apart(g, &strips, f32::slice(weights), x, y, finish, scratch);
    }
    let sorted = Sorted::new(g);
    let Some(weights) = weights else {
        return convolve(g, &sorted, &[sorted.all(w, finish)], x, y, scratch);
    };
    let Some(mut pixels) = scratch.zeros::<f32>(g.c / g.groups * sorted.len) else { return };
    let taps: Vec<_> = (0..g.taps()).map(|tap| [tap; 2]).collect();
    let (places, y) = (TapPlaces::new(g, &sorted, taps.len(), &taps).pixels, Shared::new(y));
    let outputs: Vec<_> = (0..g.outputs()).map(|at| sorted.output(at)).collect();
    for image in 0..images {
        copy(g, &sorted, image, x, &mut pixels);
        let pixels = Pixels { x: &pixels, outputs: &outputs[..], terms: &places[..] };
        strips.multiply(image, f32::slice(&weights), &pixels, &y, finish, scratch);
    }
}

/// `y` of images whose windows do not overlap and have no padding: each is copied into a row of its own.
fn apart(
    g: &ConvShape,
    strips: &Strips,
    weights: &[f32],
    x: &[f32],
    y: &mut [f32],
    finish: &dyn Finish<f32>,
    scratch: &Scratch,
) {
    let (channels, depth, y) = (g.c / g.groups, g.patch(), Shared::new(y));
    let ([down, across], [rows, columns]) = (g.options().stride, g.kernel);
    let Some(mut patches) = scratch.borrow::<f32>(g.outputs() * depth) else { return };
    for image in 0..g.n * g.groups {
        let x = &x[image * channels * g.inputs()..][..channels * g.inputs()];
        parallel(&mut patches, g.q * depth, &|first, patches| {
            let top = first / depth / g.q * down;
            for (output, patch) in patches.chunks_exact_mut(depth).enumerate() {
                for (channel, lines) in patch.chunks_exact_mut(rows * columns).enumerate() {
                    let from = channel * g.inputs() + top * g.w + output * across;
                    for (line, x) in lines.chunks_exact_mut(columns).zip(x[from..].chunks(g.w)) {
                        copy_row(x, 1, line);
                    }
                }
            }
        });
        let pixels = Pixels { x: &patches, outputs: Apart(depth), terms: Apart(1) };
        strips.multiply(image, weights, &pixels, &y, finish, scratch);
    }
}

/// Convolves images `x`; each part is stored in places of `y` of its own.
pub(super) fn convolve(
    g: &ConvShape,
    sorted: &Sorted,
    parts: &[Part<'_>],
    x: &[f32],
    y: &mut [f32],
    scratch: &Scratch,
) {
    let (terms, images, y) = (g.c / g.groups, g.n * g.groups, Shared::new(y));
    let products: Vec<_> = parts.iter().map(|part| Direct::new(g, sorted, part)).collect();
    let Some(&Direct { rows, panel, panels, .. }) = products.first() else { return };
    let depth: usize = parts.iter().flat_map(|part| &part.sums).map(|sums| terms * sums.taps.len()).sum();
    let kinds = parts.iter().map(|part| part.sums.len()).max().unwrap_or(0);
    if images >= TASKS {
        let memory = || [scratch.zeros(terms * sorted.len), scratch.borrow(kinds * rows * panel)];
        return tasks(images, depth * rows * g.outputs(), &memory, &|image, memory| {
            let [Some(pixels), Some(sums)] = memory else { return };
            for (channel, to) in pixels.chunks_exact_mut(sorted.len).enumerate() {
                let from = &x[(image * terms + channel) * g.inputs()..][..g.inputs()];
                sorted.copy(from, to, pulp::Arch::new());
            }
            for product in &products {
                (0..panels).for_each(|panel| product.panel(image, (panel, 0, 1), pixels, sums, &y));
            }
        });
    }
    let Some(mut pixels) = scratch.zeros::<f32>(terms * sorted.len) else { return };
    // The rows of a few panels are divided, for threads. The order of each sum is the same however they are.
    let shares = (2 * rayon::current_num_threads()).div_ceil(panels).min(rows.div_ceil(Block::ROWS));
    let work = depth * rows.div_ceil(shares) * panel;
    for image in 0..images {
        copy(g, sorted, image, x, &mut pixels);
        tasks(
            panels * shares,
            work,
            &|| scratch.borrow::<f32>(kinds * rows.div_ceil(shares) * panel),
            &|task, sums| {
                let Some(sums) = sums else { return };
                let share = (task / shares, task % shares, shares);
                products.iter().for_each(|product| product.panel(image, share, &pixels, sums, &y));
            },
        );
    }
}

/// Copies the channels of one image and group into their order, in threads.
fn copy(g: &ConvShape, sorted: &Sorted, image: usize, x: &[f32], pixels: &mut [f32]) {
    let (inputs, arch) = (g.inputs(), pulp::Arch::new());
    let first = image * (g.c / g.groups);
    let channels = Shared::new(pixels);
    tasks(g.c / g.groups, inputs, &|| (), &|channel, ()| {
        // SAFETY: this channel belongs to this task alone.
        let to = unsafe { channels.part(channel * sorted.len, sorted.len) };
        sorted.copy(&x[(first + channel) * inputs..][..inputs], to, arch);
    });
}

/// The places of the terms of some taps: of the weights of an output channel, and of the pixels of the first output.
struct TapPlaces {
    /// None if the terms are those of all weights.
    weights: Option<Vec<usize>>,
    pixels: Vec<usize>,
}

impl TapPlaces {
    /// Those of the taps `[number of the weight, number of the tap]`, of `count` weights for each input channel.
    fn new(g: &ConvShape, sorted: &Sorted, count: usize, taps: &[[usize; 2]]) -> Self {
        let channels = 0..g.c / g.groups;
        let of = |place: fn(&Sorted, [usize; 2]) -> usize, apart: usize| {
            channels.clone().flat_map(|c| taps.iter().map(move |&tap| c * apart + place(sorted, tap))).collect()
        };
        Self {
            weights: (taps.len() < count).then(|| of(|_, [weight, _]| weight, count)),
            pixels: of(|sorted, [_, tap]| sorted.taps[tap], sorted.len),
        }
    }
}

/// The products of a part of a convolution.
struct Direct<'a> {
    g: &'a ConvShape,
    sorted: &'a Sorted,
    part: &'a Part<'a>,
    /// The places of the terms of each kind of sums, for each kind of layers, and the kind of each layer.
    places: Vec<Vec<TapPlaces>>,
    layers: Vec<usize>,
    /// Output channels of a group.
    rows: usize,
    /// Columns of a layer, and of a panel.
    columns: usize,
    panel: usize,
    /// Panels of all layers.
    panels: usize,
}

impl<'a> Direct<'a> {
    fn new(g: &'a ConvShape, sorted: &'a Sorted, part: &'a Part<'a>) -> Self {
        let columns = sorted.columns();
        // Panels of nearly one size.
        let panel = columns.div_ceil(columns.div_ceil(PIXELS)).next_multiple_of(Block::COLUMNS);
        // Taps in planes of padding have no terms, unless `Strips` could compute the same sums.
        let mut kinds: Vec<Vec<Vec<[usize; 2]>>> = Vec::new();
        let kind = |layer: usize| {
            let is_inside = |tap: usize| g.outputs() <= FEW || sorted.inside[tap].contains(&layer);
            let taps = |sums: &Terms<'_>| {
                let taps = sums.taps.iter().enumerate().filter(|&(_, &tap)| is_inside(tap));
                taps.map(|(weight, &tap)| [weight, tap]).collect()
            };
            let taps: Vec<_> = part.sums.iter().map(taps).collect();
            kinds.iter().position(|known| *known == taps).unwrap_or_else(|| {
                kinds.push(taps);
                kinds.len() - 1
            })
        };
        let layers = (0..g.depth.outputs).map(kind).collect();
        let places = |taps: Vec<Vec<[usize; 2]>>| {
            let sums = taps.iter().zip(&part.sums);
            sums.map(|(taps, sums)| TapPlaces::new(g, sorted, sums.taps.len(), taps)).collect()
        };
        let places = kinds.into_iter().map(places).collect();
        let panels = g.depth.outputs * columns.div_ceil(panel);
        Self { g, sorted, part, places, layers, rows: g.o / g.groups, columns, panel, panels }
    }

    /// Computes a panel of an image and group: one of so many shares of the rows.
    fn panel(
        &self,
        image: usize,
        (panel, share, shares): (usize, usize, usize),
        pixels: &[f32],
        sums: &mut [f32],
        y: &Shared<'_, f32>,
    ) {
        let Self { g, rows, .. } = *self;
        let of_layer = self.panels / g.depth.outputs;
        let (layer, first) = (panel / of_layer, panel % of_layer * self.panel);
        let columns = self.panel.min(self.columns - first);
        let rows_here = rows * share / shares..rows * (share + 1) / shares;
        let kind = rows_here.len() * self.panel;
        let places = &self.places[self.layers[layer]];
        let finished = match &places[..] {
            [TapPlaces { weights: None, .. }] => {
                self.finished([image * rows + rows_here.start, layer], first, columns, y)
            }
            _ => None,
        };
        let sums = &mut sums[..places.len() * kind];
        for ((terms, places), sums) in self.part.sums.iter().zip(places).zip(sums.chunks_exact_mut(kind)) {
            let all = g.c / g.groups * terms.taps.len();
            let product = Product {
                extents: [rows_here.len(), columns, places.pixels.len()],
                weights: &terms.w[(image % g.groups * rows + rows_here.start) * all..],
                apart: all,
                pixels: &pixels[layer * self.sorted.layer..],
                places: self.sorted.lines(&places.pixels, first),
                sums: (sums, self.panel),
            };
            match (&places.weights, finished) {
                // SAFETY: these pixels of these channels belong to this task alone.
                (None, Some(finished)) => unsafe {
                    product.block(Apart(1)).multiply_finished(pulp::Arch::new(), finished);
                },
                (None, None) => product.block(Apart(1)).multiply(pulp::Arch::new()),
                (Some(weights), _) => product.block(&weights[..]).multiply(pulp::Arch::new()),
            }
        }
        if finished.is_some() {
            return;
        }
        let lines = self.sorted.runs(first, columns);
        let mut runs = rows_here.enumerate().flat_map(|(at, row)| {
            let plane = ((image * rows + row) * g.depth.outputs + layer) * g.p * g.q;
            lines.iter().map(move |line| Run { first: plane + line.first, at: at * self.panel + line.at, ..*line })
        });
        // SAFETY: these pixels of these channels belong to this task alone.
        unsafe { self.part.finish.store(sums, &mut runs, y) };
    }

    /// The products of channels from number `channel` of all images on and of these columns of a layer, if they can be
    /// finished in registers.
    fn finished<'b>(
        &'b self,
        [channel, layer]: [usize; 2],
        first: usize,
        columns: usize,
        y: &'b Shared<'b, f32>,
    ) -> Option<Finished<'b, true>> {
        let g = self.g;
        let affine = self.part.finish.affine()?;
        let finished = Finished::rows(affine, [g.o, g.outputs()], y)?;
        let begin = channel * g.outputs() + layer * g.p * g.q;
        match self.sorted.gaps(first) {
            None => Some(finished.at(affine, begin + first, columns).in_lines(None)),
            Some(gaps) if gaps.len < Block::COLUMNS => None,
            gaps => Some(finished.at(affine, begin, columns).in_lines(gaps)),
        }
    }
}

/// The product of some rows of weights and a panel of pixels.
struct Product<'a> {
    extents: [usize; 3],
    weights: &'a [f32],
    /// The distance of neighbouring rows of weights.
    apart: usize,
    pixels: &'a [f32],
    places: Lines<'a>,
    /// The sums, and the distance of their rows.
    sums: (&'a mut [f32], usize),
}

impl<'a> Product<'a> {
    /// With the weights of terms in these places.
    fn block<A: Places>(self, weights: A) -> Block<'a, Apart, A, Lines<'a>> {
        let (c, c_stride) = self.sums;
        Block {
            extents: self.extents,
            a: self.weights,
            a_rows: Apart(self.apart),
            a_terms: weights,
            b: self.pixels,
            b_terms: self.places,
            c,
            c_stride,
            accumulate: Accumulate::No,
        }
    }
}
