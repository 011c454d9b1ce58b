//! Winograd's F(4×4, 3×3) on a GPU: transforms around the products of 36 frequencies.

use super::ConvShape;
use super::pass::Pass;
use crate::kernel::gemm::{Cut, Operands, Product, Sums};
use crate::kernel::launch::{Binding, Caps, Define, Kind, Launch, Variant, Workgroups, define};
use crate::{Layout, Shape};

/// The products that a tile's convolution becomes.
const FREQUENCIES: usize = 36;

/// Multiplications from which Winograd's additional launches pay.
const WINOGRAD_WORK: usize = 100_000_000;

/// Invocations of a workgroup that moves data: enough that starting workgroups takes a small part of the time.
const TRANSFORM: usize = 256;

/// `true` if the variant is faster than the direct product.
pub(super) fn pays(g: &ConvShape, direct: Product, caps: &Caps) -> bool {
    let work = direct.batch * direct.m * direct.n * direct.k;
    let large = work >= WINOGRAD_WORK && g.c.min(g.o) >= 16 && g.p.min(g.q) >= 3;
    large && !caps.matrix && caps.kind != Kind::Software
}

/// Images that are transformed in tiles.
struct Images {
    n: usize,
    channels: usize,
    extent: [usize; 2],
    /// Extents of the outputs, which the tiles cover.
    outputs: [usize; 2],
    /// Zeros before the first row and column; may be negative.
    padding: [isize; 2],
}

impl Images {
    /// Tiles of 4×4 outputs of an image, down and across.
    fn grid(&self) -> [usize; 2] {
        self.outputs.map(|extent| extent.div_ceil(4))
    }

    fn tiles(&self) -> usize {
        self.n * self.grid().iter().product::<usize>()
    }

    /// The defines of `shared/winograd_tiles`.
    fn defines(&self) -> Vec<Define> {
        let ([p, q], [tiles_p, tiles_q]) = (self.outputs, self.grid());
        define![N: self.n, P: p, Q: q, TILES_P: tiles_p, TILES_Q: tiles_q, TILES: self.tiles()]
    }

    /// The launch that transforms them into a scratch buffer.
    fn transform(&self, from: Binding, to: Binding) -> Launch {
        let ([h, w], [ph, pw]) = (self.extent, self.padding);
        let defines = [self.defines(), define![C: self.channels, H: h, W: w, PH: ph, PW: pw]].concat();
        Launch { bindings: vec![from, to], ..transform("winograd_input", defines, self.channels * self.tiles()) }
    }
}

/// The same device without matrix units: rounding to f16 between Winograd's transforms would be amplified.
fn scalar(caps: &Caps) -> Caps {
    Caps { matrix: false, ..*caps }
}

/// The variant, where the geometry allows it.
pub(super) fn variant(pass: Pass, g: &ConvShape, caps: &Caps) -> Option<Variant> {
    if !g.suits_winograd() || !g.depth.is_flat() {
        return None;
    }
    let (pad, [h, w, p, q]) = (g.options().padding, [g.h, g.w, g.p, g.q]);
    let signed = |pad: usize| isize::try_from(pad).expect("at most 2");
    let variant = match pass {
        Pass::Forward => {
            let padding = pad.map(signed);
            let images = Images { n: g.n, channels: g.c, extent: [h, w], outputs: [p, q], padding };
            winograd_product(&images, g, g.o, ("forward", Binding::Input(0)), caps)
        }
        Pass::GradInput => {
            // The transposed convolution: of the cotangents, with taps in reverse order, and padding for the taps that
            // overlap.
            let padding = pad.map(|pad| signed(2 - pad));
            let images = Images { n: g.n, channels: g.o, extent: [p, q], outputs: [h, w], padding };
            winograd_product(&images, g, g.c, ("grad_input", Binding::Input(0)), caps)
        }
        Pass::GradWeight => {
            let padding = pad.map(signed);
            let images = Images { n: g.n, channels: g.c, extent: [h, w], outputs: [p, q], padding };
            let tiles = images.tiles();
            let operands = Operands::Along;
            let product = Product { batch: FREQUENCIES, m: g.o, n: g.c, k: tiles, operands, beside: true };
            let choice = product.choices(&scalar(caps), Cut::Taken).swap_remove(0);
            let z = Layout::contiguous(Shape::from([FREQUENCIES, g.o, tiles]));
            let v = Layout::contiguous(Shape::from([FREQUENCIES, g.c, tiles])).permute(&[0, 2, 1]);
            let cotangents = [images.defines(), define![O: g.o]].concat();
            let sums = define![O: g.o, C: g.c, PARTS: choice.parts];
            let of_sums = Workgroups::of(g.o * g.c, TRANSFORM).with_memory(&[4 * 9 * TRANSFORM]).looping(choice.parts);
            let launches = vec![
                images.transform(Binding::Input(0), Binding::Scratch(0)),
                Launch {
                    bindings: vec![Binding::Input(1), Binding::Scratch(1)],
                    ..transform("winograd_grad_output", cotangents, g.o * tiles)
                },
                choice.strided(product, [(Binding::Scratch(1), &z), (Binding::Scratch(0), &v)], Sums::Scratch(2)),
                Launch {
                    bindings: vec![Binding::Scratch(2), Binding::Output(0)],
                    ..Launch::new("winograd_grad_weight", sums, (0, 0), of_sums)
                }
                .stores_through_epilogue(),
            ];
            let pairs = FREQUENCIES * g.o * g.c;
            let scratch = vec![FREQUENCIES * g.c * tiles, FREQUENCIES * g.o * tiles, choice.parts * pairs];
            Variant { name: "winograd", launches, scratch }
        }
    };
    variant.bounded()
}

/// The convolution of images to `rows` channels: transforms both operands, multiplies at each frequency, and transforms
/// back.
fn winograd_product(
    images: &Images,
    g: &ConvShape,
    rows: usize,
    (form, input): (&'static str, Binding),
    caps: &Caps,
) -> Variant {
    let (tiles, depth) = (images.tiles(), images.channels);
    let operands = Operands::Across;
    let product = Product { batch: FREQUENCIES, m: rows, n: tiles, k: depth, operands, beside: true };
    // The transform back does not add up parts.
    let choice = product.choices(&scalar(caps), Cut::Never).swap_remove(0);
    let u = Layout::contiguous(Shape::from([FREQUENCIES, depth, rows])).permute(&[0, 2, 1]);
    let v = Layout::contiguous(Shape::from([FREQUENCIES, depth, tiles]));
    let launches = vec![
        Launch {
            bindings: vec![Binding::Input(1), Binding::Scratch(0)],
            ..transform("winograd_weight", define![O: g.o, C: g.c, FORM: form], g.o * g.c)
        },
        images.transform(input, Binding::Scratch(1)),
        choice.strided(product, [(Binding::Scratch(0), &u), (Binding::Scratch(1), &v)], Sums::Scratch(2)),
        Launch {
            bindings: vec![Binding::Scratch(2), Binding::Output(0)],
            ..transform("winograd_output", [images.defines(), define![O: rows]].concat(), rows * tiles)
        }
        .stores_through_epilogue(),
    ];
    let scratch = [rows * depth, depth * tiles, rows * tiles].map(|elements| FREQUENCIES * elements).into();
    Variant { name: "winograd", launches, scratch }
}

/// A launch over so many invocations that reads one buffer and writes another.
pub(super) fn transform(kernel: &'static str, defines: Vec<Define>, invocations: usize) -> Launch {
    Launch::new(kernel, defines, (0, 0), Workgroups::of(invocations, TRANSFORM))
}
