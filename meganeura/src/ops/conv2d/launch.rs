//! Ways to compute a convolution and its gradients on a GPU, and which of them suits which shape.
//!
//! * One invocation an output (`direct`, `gather`), or for the weights one workgroup (`tree`): any shape, best for tiny ones and
//!   for channels that are convolved one by one.
//! * Tiles of an implicit matrix product: any shape. For the weights, whose sums are few and long, the reduction is cut into
//!   parts, which are added up in their order. On matrix units the operands may be rounded to `f16` beforehand, which takes half
//!   of their memory once more.
//! * Winograd's F(4×4, 3×3), for 3×3 weights without stride, dilation and groups: a quarter of the multiplications. Its errors are
//!   of the size of the others': below 5e-6 of the largest result at 512 channels.

use super::Geometry;
use crate::kernel::gemm::{Choice, Operands, Product, Sums};
use crate::kernel::launch::{Argument, Binding, Caps, Kind, Launch, Variant, define};
use crate::{Layout, Shape};

/// The products of Winograd's tiles.
const FREQUENCIES: usize = 36;

/// Bytes that Winograd's transformed operands may take together: a bound that does not grow with the batch.
const WINOGRAD_BYTES: usize = 1 << 29;

/// Multiplications from which Winograd's further launches pay.
const WINOGRAD_WORK: usize = 100_000_000;

/// Which of the three kernels. Operands: forward `x, w`; gradient of the input `dy, w`; gradient of the weight `x, dy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Forward,
    GradInput,
    GradWeight,
}

/// Ways to compute a pass, best first.
pub(super) fn variants(pass: Pass, g: &Geometry, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let product = product(pass, g);
    let mut choices = product.choices(caps, true);
    if caps.kind == Kind::Software {
        // Compiling one more of these takes a driver that computes on the CPU longer than it could ever gain.
        choices.truncate(1);
    }
    let mut variants: Vec<_> = choices.into_iter().map(|choice| tiled(pass, g, x, choice, product)).collect();
    // Rounding the operands beforehand pays where each is read often: in long sums over few pixels or many.
    let rounded = half(pass, g, x, product, caps);
    let pays = product.m > 64 && (pass == Pass::GradWeight || product.n <= 4096);
    let at = if pays { 0 } else { variants.len() };
    variants.splice(at..at, rounded);
    let plain = plain(pass, g);
    let few = pass == Pass::GradWeight && product.m * product.n <= 256;
    let lone_channels = product.m < 4 || product.k < 4;
    variants.insert(if few || lone_channels { 0 } else { variants.len() }, plain);
    if let Some(winograd) = winograd(pass, g, caps) {
        let work = product.batch * product.m * product.n * product.k;
        let pays = !caps.matrix
            && caps.kind != Kind::Software
            && work >= WINOGRAD_WORK
            && g.c.min(g.o) >= 16
            && g.p.min(g.q) >= 3;
        variants.insert(if pays { 0 } else { variants.len() }, winograd);
    }
    variants
}

/// The matrix product that a pass is, for each group.
fn product(pass: Pass, g: &Geometry) -> Product {
    let (o, c, taps) = (g.o / g.groups, g.c / g.groups, g.kernel[0] * g.kernel[1]);
    let pixels = g.n * g.p * g.q;
    let [m, n, k] = match pass {
        Pass::Forward => [o, pixels, c * taps],
        Pass::GradInput => [c, g.n * g.h * g.w, o * taps],
        Pass::GradWeight => [o, c * taps, pixels],
    };
    Product { batch: g.groups, m, n, k, operands: Operands::Gathered }
}

fn plain(pass: Pass, g: &Geometry) -> Variant {
    let (name, kernel, workgroups) = match pass {
        Pass::Forward => ("direct", "conv2d", g.output().elements().div_ceil(64)),
        Pass::GradInput => ("gather", "conv2d_grad_input", (g.n * g.c * g.h * g.w).div_ceil(64)),
        Pass::GradWeight => ("tree", "conv2d_grad_weight", g.o * g.patch()),
    };
    let mut defines = g.defines();
    defines.push(("WG", "64".into()));
    Variant::simple(name, Launch::new(kernel, defines, (2, 1), workgroups).stores_through_epilogue())
}

fn tiled(pass: Pass, g: &Geometry, x: &[Argument], choice: Choice, product: Product) -> Variant {
    let (o, c) = (g.o / g.groups, g.c / g.groups);
    let fours = |extent: usize| extent.is_multiple_of(4);
    let (kernel, form, by_taps) = match pass {
        Pass::Forward => ("conv2d_gemm", "forward", fours(o) && fours(c)),
        Pass::GradInput => ("conv2d_grad_input_gemm", "grad_input", fours(o) && fours(c)),
        Pass::GradWeight => ("conv2d_grad_weight_gemm", "", fours(c)),
    };
    let across = match pass {
        Pass::Forward => [by_taps, true],
        Pass::GradInput => [true, true],
        Pass::GradWeight => [false, false],
    };
    let packed = by_taps && pass != Pass::GradWeight;
    let weights = if packed { Binding::Scratch(choice.scratch()) } else { Binding::Input(1) };
    let mut defines = g.defines();
    defines.extend(define![ORDER: if by_taps { "taps" } else { "channels" }]);
    if pass == Pass::GradWeight && fours(g.p * g.q) {
        defines.extend(define![FOURS: 1]);
    }
    let operands = [Binding::Input(0), weights];
    let mut variant =
        choice.variant(product, x, |sums| choice.launch(kernel, defines, product, operands, across, sums));
    if packed {
        let len = g.o * g.patch();
        let defines = define![LEN: len, TAPS: g.kernel[0] * g.kernel[1], GROUP_O: o, GROUP_C: c, FORM: form];
        let pack = Launch { bindings: vec![Binding::Input(1), weights], ..transform("conv2d_pack", defines, len) };
        variant.launches.insert(0, pack);
        variant.scratch.push(len);
    }
    variant
}

/// Matrix units on operands that are rounded to `f16` beforehand, eight channels of a pixel side by side.
fn half(pass: Pass, g: &Geometry, x: &[Argument], product: Product, caps: &Caps) -> Vec<Variant> {
    let (o, c) = (g.o / g.groups, g.c / g.groups);
    if !o.is_multiple_of(8) || !c.is_multiple_of(8) {
        return Vec::new();
    }
    let (inputs, outputs) = ((g.n, g.c, g.h * g.w), (g.n, g.o, g.p * g.q));
    let weights = g.o * g.patch();
    let scales = Binding::Scratch(0);
    let images = |(n, c, s): (usize, usize, usize), operand: usize, to| Launch {
        bindings: vec![Binding::Input(operand), scales, to],
        ..transform("half_images", define![N: n, C: c, S: s, OPERAND: operand], n * s * c.div_ceil(32) * 4)
    };
    let taps = g.kernel[0] * g.kernel[1];
    let turned = |form: &'static str, to| {
        let defines = define![LEN: weights, TAPS: taps, GROUP_O: o, GROUP_C: c, FORM: form];
        Launch { bindings: vec![Binding::Input(1), scales, to], ..transform("half_weights", defines, weights / 8) }
    };
    let variant = |choice: Choice| {
        let [a, b] = [0, 1].map(|at| Binding::Scratch(choice.scratch() + at));
        let extent = |(n, c, s)| n * c * s / 2;
        let (kernel, across, launches, scratch) = match pass {
            Pass::Forward => {
                ("conv2d_half", false, [images(inputs, 0, a), turned("forward", b)], [extent(inputs), weights / 2])
            }
            Pass::GradInput => (
                "conv2d_grad_input_half",
                false,
                [images(outputs, 0, a), turned("grad_input", b)],
                [extent(outputs), weights / 2],
            ),
            Pass::GradWeight => (
                "conv2d_grad_weight_half",
                true,
                [images(inputs, 0, a), images(outputs, 1, b)],
                [extent(inputs), extent(outputs)],
            ),
        };
        let launch = |sums| choice.launch(kernel, g.defines(), product, [a, b], [across; 2], sums);
        let mut variant = choice.variant(product, x, launch);
        // After those that find the scales.
        variant.launches.splice(2..2, launches);
        variant.scratch.extend(scratch);
        variant
    };
    product.half_choices(caps).into_iter().map(variant).collect()
}

/// A launch over so many invocations that reads one buffer and writes another.
fn transform(kernel: &'static str, mut defines: Vec<(&'static str, String)>, invocations: usize) -> Launch {
    defines.extend(define![WG: 64]);
    Launch::new(kernel, defines, (0, 0), invocations.div_ceil(64))
}

/// Images as Winograd's algorithm sees them: extents, and zeros before them.
struct Images {
    n: usize,
    channels: usize,
    extent: [usize; 2],
    /// Pixels of the outputs that tiles are made of.
    outputs: [usize; 2],
    padding: [isize; 2],
}

impl Images {
    fn tiles(&self) -> usize {
        self.n * self.outputs[0].div_ceil(4) * self.outputs[1].div_ceil(4)
    }

    /// Transforms them into a scratch buffer.
    fn transform(&self, from: Binding, to: Binding) -> Launch {
        let [h, w] = self.extent;
        let [p, q] = self.outputs;
        let [ph, pw] = self.padding;
        let defines = define![N: self.n, C: self.channels, H: h, W: w, P: p, Q: q, PH: ph, PW: pw];
        Launch { bindings: vec![from, to], ..transform("winograd_input", defines, self.channels * self.tiles()) }
    }
}

/// The same device without matrix units: rounding to f16 between Winograd's transforms would be amplified.
fn scalar(caps: &Caps) -> Caps {
    Caps { matrix: false, ..*caps }
}

fn winograd(pass: Pass, g: &Geometry, caps: &Caps) -> Option<Variant> {
    let options = g.options();
    let plain = g.groups == 1 && g.kernel == [3, 3] && options.stride == [1, 1] && options.dilation == [1, 1];
    let (pad, [h, w, p, q]) = (options.padding, [g.h, g.w, g.p, g.q]);
    if !plain || pad[0] > 2 || pad[1] > 2 {
        return None;
    }
    let signed = |pad: usize| isize::try_from(pad).expect("at most 2");
    let variant = match pass {
        Pass::Forward => {
            let padding = pad.map(signed);
            let images = Images { n: g.n, channels: g.c, extent: [h, w], outputs: [p, q], padding };
            winograd_product(&images, g, g.o, ("forward", Binding::Input(0)), caps)
        }
        Pass::GradInput => {
            // The transposed convolution: of the cotangents, with the taps turned, and zeros around for the taps that overlap.
            let padding = pad.map(|pad| signed(2 - pad));
            let images = Images { n: g.n, channels: g.o, extent: [p, q], outputs: [h, w], padding };
            winograd_product(&images, g, g.c, ("grad_input", Binding::Input(0)), caps)
        }
        Pass::GradWeight => {
            let padding = pad.map(signed);
            let images = Images { n: g.n, channels: g.c, extent: [h, w], outputs: [p, q], padding };
            let tiles = images.tiles();
            let product = Product { batch: FREQUENCIES, m: g.o, n: g.c, k: tiles, operands: Operands::Along };
            let choice = product.choices(&scalar(caps), true).swap_remove(0);
            let z = Layout::contiguous(Shape::from([FREQUENCIES, g.o, tiles]));
            let v = Layout::contiguous(Shape::from([FREQUENCIES, g.c, tiles])).permute(&[0, 2, 1]);
            let cotangents = define![N: g.n, O: g.o, P: p, Q: q];
            let launches = vec![
                images.transform(Binding::Input(0), Binding::Scratch(0)),
                Launch {
                    bindings: vec![Binding::Input(1), Binding::Scratch(1)],
                    ..transform("winograd_grad_output", cotangents, g.o * tiles)
                },
                choice.strided(product, [(Binding::Scratch(1), &z), (Binding::Scratch(0), &v)], Sums::Scratch(2)),
                Launch {
                    bindings: vec![Binding::Scratch(2), Binding::Output(0)],
                    ..transform("winograd_grad_weight", define![O: g.o, C: g.c, PARTS: choice.parts], g.o * g.c)
                }
                .stores_through_epilogue(),
            ];
            let pairs = FREQUENCIES * g.o * g.c;
            let scratch = vec![FREQUENCIES * g.c * tiles, FREQUENCIES * g.o * tiles, choice.parts * pairs];
            Variant { name: "winograd", launches, scratch }
        }
    };
    let bytes = variant.scratch.iter().fold(0usize, |sum, &elements| sum.saturating_add(elements.saturating_mul(4)));
    (bytes <= WINOGRAD_BYTES).then_some(variant)
}

/// The convolution of images to `rows` channels: both operands transformed, a product for each frequency, and back.
fn winograd_product(
    images: &Images,
    g: &Geometry,
    rows: usize,
    (form, input): (&'static str, Binding),
    caps: &Caps,
) -> Variant {
    let (tiles, depth) = (images.tiles(), images.channels);
    let product = Product { batch: FREQUENCIES, m: rows, n: tiles, k: depth, operands: Operands::Across };
    // The way back adds no parts up.
    let choice = product.choices(&scalar(caps), false).swap_remove(0);
    let u = Layout::contiguous(Shape::from([FREQUENCIES, depth, rows])).permute(&[0, 2, 1]);
    let v = Layout::contiguous(Shape::from([FREQUENCIES, depth, tiles]));
    let [p, q] = images.outputs;
    let launches = vec![
        Launch {
            bindings: vec![Binding::Input(1), Binding::Scratch(0)],
            ..transform("winograd_weight", define![O: g.o, C: g.c, FORM: form], g.o * g.c)
        },
        images.transform(input, Binding::Scratch(1)),
        choice.strided(product, [(Binding::Scratch(0), &u), (Binding::Scratch(1), &v)], Sums::Scratch(2)),
        Launch {
            bindings: vec![Binding::Scratch(2), Binding::Output(0)],
            ..transform("winograd_output", define![N: images.n, O: rows, P: p, Q: q], rows * tiles)
        }
        .stores_through_epilogue(),
    ];
    let scratch = [rows * depth, depth * tiles, rows * tiles].map(|elements| FREQUENCIES * elements).into();
    Variant { name: "winograd", launches, scratch }
}
