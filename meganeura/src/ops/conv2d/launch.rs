//! Ways to compute a convolution and its gradients on a GPU, and which of them suits which shape.
//!
//! * One invocation an output (`direct`, `gather`), or for the weights one workgroup (`tree`): any shape, best for tiny ones and
//!   for channels that are convolved one by one.
//! * Tiles of an implicit matrix product: any shape. For the weights, whose sums are few and long, the reduction is cut into
//!   parts, which are added up in their order. On matrix units operands whose channels are multiples of eight are read in
//!   lines, and without stride the gradient of the weights takes a tap for a distance (`windows`).
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

/// Invocations of a workgroup that moves data: enough that starting workgroups is not what takes the time.
const TRANSFORM: usize = 256;

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
    variants.splice(0..0, lines(pass, g, x, product, caps));
    if pass == Pass::GradWeight {
        variants.splice(0..0, windows(g, x, caps));
    }
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
        pack(&mut variant, g, form, false);
    }
    variant
}

/// Matrix units that read eight channels of a pixel at a time.
fn lines(pass: Pass, g: &Geometry, x: &[Argument], product: Product, caps: &Caps) -> Vec<Variant> {
    let (o, c) = (g.o / g.groups, g.c / g.groups);
    if !o.is_multiple_of(8) || !c.is_multiple_of(8) {
        return Vec::new();
    }
    let (kernel, form) = match pass {
        Pass::Forward => ("conv2d_lines", Some("forward")),
        Pass::GradInput => ("conv2d_grad_input_lines", Some("grad_input")),
        Pass::GradWeight => ("conv2d_grad_weight_lines", None),
    };
    let variant = |choice: Choice| {
        let rows = if form.is_some() { Binding::Scratch(choice.scratch()) } else { Binding::Input(1) };
        let (operands, across) = ([Binding::Input(0), rows], [form.is_none(); 2]);
        let launch = |sums| choice.launch(kernel, g.defines(), product, operands, across, sums);
        let mut variant = choice.variant(product, x, launch);
        if let Some(form) = form {
            pack(&mut variant, g, form, true);
        }
        variant
    };
    product.line_choices(caps, form.is_none()).into_iter().map(variant).collect()
}

/// The gradient of the weights on matrix units, where it may take a tap for a distance: without stride, for few taps, whose sums are
/// in registers all at once, and images that padding makes little larger.
fn windows(g: &Geometry, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let (o, c, taps, options) = (g.o / g.groups, g.c / g.groups, g.kernel[0] * g.kernel[1], g.options());
    let [height, width] = [(g.h + options.padding[0]).max(g.p), (g.w + options.padding[1]).max(g.q)];
    let whole = o.is_multiple_of(8) && c.is_multiple_of(8) && options.stride == [1, 1];
    if !whole || !(2..=9).contains(&taps) || height * width > 2 * g.p * g.q {
        return Vec::new();
    }
    let span = (g.kernel[0] - 1) * options.dilation[0] * width + (g.kernel[1] - 1) * options.dilation[1];
    let (n, k) = (c.div_ceil(16) * 16 * taps, g.n * height * width);
    let product = Product { batch: g.groups, m: o, n, k, operands: Operands::Gathered };
    let variant = |choice: Choice| {
        let operands = [Binding::Input(0), Binding::Input(1)];
        // What there is of the result: the product's columns are counted in whole sixteens of channels.
        let weights = Product { n: c * taps, ..product };
        let launch = |sums| choice.launch("conv2d_grad_weight_window", g.defines(), product, operands, [true; 2], sums);
        choice.variant(weights, x, launch)
    };
    product.window_choices(caps, taps, span).into_iter().map(variant).collect()
}

/// Lets `variant` begin with a launch that puts the weights into the order in which its product reads them, in a further scratch
/// buffer.
fn pack(variant: &mut Variant, g: &Geometry, form: &'static str, lines: bool) {
    const RUN: usize = 9;
    let (o, c, taps, len) = (g.o / g.groups, g.c / g.groups, g.kernel[0] * g.kernel[1], g.o * g.patch());
    let mut defines = define![TAPS: taps, GROUP_O: o, GROUP_C: c, FORM: form];
    let launch = if lines {
        let (m, k) = if form == "forward" { (o, c) } else { (c, o) };
        defines.extend(define![G: g.groups, RUN: taps.min(RUN)]);
        Launch::new("conv2d_pack_lines", defines, (0, 0), g.groups * (k / 8) * m.div_ceil(32))
    } else {
        defines.extend(define![LEN: len]);
        transform("conv2d_pack", defines, len)
    };
    let bindings = vec![Binding::Input(1), Binding::Scratch(variant.scratch.len())];
    variant.launches.insert(0, Launch { bindings, ..launch });
    variant.scratch.push(len);
}

/// A launch over so many invocations that reads one buffer and writes another.
fn transform(kernel: &'static str, mut defines: Vec<(&'static str, String)>, invocations: usize) -> Launch {
    defines.extend(define![WG: TRANSFORM]);
    Launch::new(kernel, defines, (0, 0), invocations.div_ceil(TRANSFORM))
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
