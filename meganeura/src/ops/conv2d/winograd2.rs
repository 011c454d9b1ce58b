//! Winograd's F(2×2, 3×3) on matrix units: transforms that pack in f16, around the products of 16 frequencies. Its coefficients are so
//! small that rounding between the transforms makes errors of less than 1e-3 of the largest result, as without it; what F(4×4, 3×3)
//! saves more it loses in accuracy.

use super::Geometry;
use super::pass::Pass;
use super::winograd::transform;
use crate::kernel::gemm::{Choice, Cut, Operands, Packed, Product, Sums};
use crate::kernel::launch::{Binding, Caps, Launch, Variant, define, tree};

const FREQUENCIES: usize = 16;

/// Whether the variant is faster than the direct product: where there are so many channels that the transforms are little work beside the
/// products, and images are small. The gradient of the weights transforms its products back once for all images, and may have
/// larger ones.
pub(super) fn pays(pass: Pass, g: &Geometry) -> bool {
    let most = if pass == Pass::GradWeight { 16 } else { 8 };
    g.c.min(g.o) >= 128 && [g.h, g.w, g.p, g.q].iter().all(|extent| (3..=most).contains(extent))
}

/// Images in tiles of 2×2 pixels, eight of which make a line.
struct Images {
    n: usize,
    channels: usize,
    extent: [usize; 2],
    /// Zeros before them.
    padding: [usize; 2],
    /// Whether they are cotangents of the outputs, which tiles cut; or inputs, of which tiles read a pixel more on each side.
    cotangents: bool,
    /// Tiles of a line: images, rows and columns.
    line: [usize; 3],
    /// Lines, counted the same way.
    lines: [usize; 3],
}

impl Images {
    /// Inputs, in tiles for outputs of these extents.
    fn new(n: usize, channels: usize, extent: [usize; 2], padding: [usize; 2], outputs: [usize; 2]) -> Self {
        let [rows, columns] = outputs.map(|extent| extent.div_ceil(2));
        let beside = columns.next_power_of_two().min(8);
        let down = rows.next_power_of_two().min(8 / beside);
        let line = [8 / (beside * down), down, beside];
        let lines = [n.div_ceil(line[0]), rows.div_ceil(down), columns.div_ceil(beside)];
        Self { n, channels, extent, padding, cotangents: false, line, lines }
    }

    /// The cotangents of the same outputs.
    fn cotangents(&self, channels: usize, extent: [usize; 2]) -> Self {
        Self { channels, extent, padding: [0, 0], cotangents: true, ..*self }
    }

    fn tiles(&self) -> usize {
        8 * self.lines.iter().product::<usize>()
    }

    fn packed(&self) -> Packed {
        Packed { batch: FREQUENCIES, x: self.tiles(), y: self.channels }
    }

    /// How tiles are counted.
    fn order(&self) -> Vec<(&'static str, String)> {
        let ([n, p, q], [lines_n, lines_p, lines_q]) = (self.line, self.lines);
        define![LINE_N: n, LINE_P: p, LINE_Q: q, LINES_N: lines_n, LINES_P: lines_p, LINES_Q: lines_q]
    }

    /// The launch that packs them.
    fn pack(&self, bindings: [Binding; 3]) -> Launch {
        let ([h, w], [ph, pw]) = (self.extent, self.padding);
        let (form, more) = if self.cotangents { ("cotangent", 0) } else { ("input", 2) };
        let [height, width] = [1, 2].map(|axis| 2 * self.line[axis] + more);
        let whole = self.lines[2] == 1;
        let elem = if whole && w.is_multiple_of(4) { 4 } else { 1 };
        let mut defines = define![N: self.n, C: self.channels, H: h, W: w, FORM: form, PH: ph, PW: pw];
        defines.extend(define![HEIGHT: height, WIDTH: width, ELEM: elem, VECS: if whole { w / elem } else { width }]);
        defines.extend(self.order());
        let launch = Launch::new("winograd2_images", defines, (0, 0), self.packed().blocks()).loops(tree(128));
        Launch { bindings: bindings.into(), ..launch }
    }
}

/// The variant, where the geometry allows it.
pub(super) fn variant(pass: Pass, g: &Geometry, caps: &Caps) -> Option<Variant> {
    if !g.suits_winograd() || !g.c.is_multiple_of(8) || !g.o.is_multiple_of(8) {
        return None;
    }
    let (pad, [inputs, outputs]) = (g.options().padding, [[g.h, g.w], [g.p, g.q]]);
    let variant = match pass {
        Pass::Forward => {
            let images = Images::new(g.n, g.c, inputs, pad, outputs);
            convolution(&images, g, "forward", (g.o, outputs), caps)
        }
        Pass::GradInput => {
            // The transposed convolution: of the cotangents, with the taps turned, and zeros around for the taps that overlap.
            let images = Images::new(g.n, g.o, outputs, pad.map(|pad| 2 - pad), inputs);
            convolution(&images, g, "grad_input", (g.c, inputs), caps)
        }
        Pass::GradWeight => grad_weight(g, caps),
    };
    variant?.bounded()
}

/// Operands a and b of the products, the exponents of both, and their sums.
const BUFFERS: [Binding; 5] =
    [Binding::Scratch(0), Binding::Scratch(1), Binding::Scratch(2), Binding::Scratch(3), Binding::Scratch(4)];

/// The products of two operands between what packs them and what makes the result of the sums, of which there are so many.
fn variant_of(
    choice: Choice,
    product: Product,
    (pack, packed): ([Launch; 2], [Packed; 2]),
    across: [bool; 2],
    (result, sums): (Launch, usize),
) -> Variant {
    let [operands @ .., _] = BUFFERS;
    let [a, b] = packed.map(|operand| operand.scratch());
    let result = Launch { bindings: vec![BUFFERS[4], Binding::Output(0)], ..result }.stores_through_epilogue();
    let mut launches = Vec::from(pack);
    launches.extend([choice.packed(product, &operands, across, Sums::Scratch(4)), result]);
    Variant { name: "winograd2", launches, scratch: vec![a[0], b[0], a[1], b[1], sums] }
}

/// The convolution of images to so many channels of these extents.
fn convolution(
    images: &Images,
    g: &Geometry,
    form: &'static str,
    (rows, [p, q]): (usize, [usize; 2]),
    caps: &Caps,
) -> Option<Variant> {
    let (depth, tiles) = (images.channels, images.tiles());
    let product = Product { batch: FREQUENCIES, m: rows, n: tiles, k: depth, operands: Operands::Across, beside: true };
    let choice = product.packed_choices(caps, Cut::Never).into_iter().next()?;
    let [u, v, of_u, of_v, _] = BUFFERS;
    let weights = Packed { batch: FREQUENCIES, x: g.c, y: g.o };
    let defines = define![O: g.o, C: g.c, FORM: form];
    let pack = Launch::new("winograd2_weight", defines, (0, 0), weights.blocks()).loops(tree(128));
    let pack = Launch { bindings: vec![Binding::Input(1), u, of_u], ..pack };
    let pack = ([pack, images.pack([Binding::Input(0), v, of_v])], [weights, images.packed()]);
    let mut defines = define![N: images.n, O: rows, P: p, Q: q];
    defines.extend(images.order());
    let result = transform("winograd2_output", defines, rows * tiles);
    // Lines of weights are of input channels.
    Some(variant_of(choice, product, pack, [form == "grad_input", true], (result, FREQUENCIES * rows * tiles)))
}

fn grad_weight(g: &Geometry, caps: &Caps) -> Option<Variant> {
    let images = Images::new(g.n, g.c, [g.h, g.w], g.options().padding, [g.p, g.q]);
    let cotangents = images.cotangents(g.o, [g.p, g.q]);
    let (k, operands) = (images.tiles(), Operands::Along);
    let product = Product { batch: FREQUENCIES, m: g.o, n: g.c, k, operands, beside: true };
    let choice = product.packed_choices(caps, Cut::Taken).into_iter().next()?;
    let [z, v, of_z, of_v, _] = BUFFERS;
    let pack = [cotangents.pack([Binding::Input(1), z, of_z]), images.pack([Binding::Input(0), v, of_v])];
    let defines = define![O: g.o, C: g.c, FREQUENCIES: FREQUENCIES, PARTS: choice.parts];
    let result = transform("winograd2_grad_weight", defines, g.o * g.c).loops(choice.parts);
    let sums = choice.parts * FREQUENCIES * g.o * g.c;
    Some(variant_of(choice, product, (pack, [cotangents.packed(), images.packed()]), [false; 2], (result, sums)))
}
