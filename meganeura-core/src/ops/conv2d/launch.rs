//! Variants of a convolution and its gradients on a GPU, and the choice among them by shape.
//!
//! * Groups of few channels, above all one: see [`narrow`].
//! * One invocation for each output (`direct`, `gather`): best for tiny sums. One workgroup for each (`tree`): best for
//!   the gradients of few weights, and for sums that are too long for an invocation's loop.
//! * Tiles of an implicit matrix product: any shape. The sums of a weight's gradient are few and long, so the
//!   reduction is cut into parts, which are added up in their order.
//! * Tiles of pixels on matrix units, of images in bf16 ([`Format::Bf16`](crate::kernel::launch::Format)), whose
//!   inputs are in workgroup memory once for all taps: `taps`, and for the weights `taps_weight`. The result is in
//!   bf16 if its channels fall into lines, else in `f32`. Where taps span too many pixels for a tile, images are
//!   converted.
//! * Winograd's F(4×4, 3×3), for 3×3 weights without stride, dilation and groups: a quarter of the multiplications. Its
//!   errors are of the size of the others': below 5e-6 of the largest result at 512 channels. On matrix units, f16
//!   between its transforms would lose too many digits.

use super::convolution::Convolution;
use super::narrow::{self, lines, lines_weight, planes, planes_weight};
use super::pass::Pass;
use super::winograd::transform;
use super::{ConvShape, taps, taps_weight, winograd};
use crate::Shape;
use crate::kernel::gemm::{Choice, Cut, Operands, Product, sums_rows};
use crate::kernel::launch::{Binding, Caps, Channels, Define, Kind, LINE, Launch, Variant, conversion, define};
use crate::ops::terms::{Terms, Tree};
use crate::ops::{Bf16, Innermost, Stores};

/// Variants of a pass, best first: of images in bf16 where there are such variants, else of `f32`.
pub(super) fn variants(pass: Pass, g: &ConvShape, caps: &Caps) -> Vec<Variant> {
    let of_bf16 = on_bf16(pass, g, caps);
    if of_bf16.is_empty() { on_full(pass, g, caps) } else { of_bf16 }
}

fn on_full(pass: Pass, g: &ConvShape, caps: &Caps) -> Vec<Variant> {
    let product = product(pass, g);
    if !caps.tiles {
        return plain(pass, g, product, caps);
    }
    let mut choices = product.choices(caps, Cut::Added);
    if caps.kind == Kind::Software {
        // On a driver that computes on the CPU, compiling another costs more than it could ever gain.
        choices.truncate(1);
    }
    let mut variants: Vec<_> = choices.into_iter().map(|choice| tiled(pass, g, choice, product)).collect();
    let best = match pass {
        Pass::GradWeight => product.m * product.n <= 256 || product.is_not_worth_tiles(caps),
        Pass::Forward | Pass::GradInput => product.m < 4 || product.k < 4 || product.is_not_worth_tiles(caps),
    };
    let at = if best { 0 } else { variants.len() };
    variants.splice(at..at, plain(pass, g, product, caps));
    let narrow = match pass {
        Pass::GradWeight => planes_weight::variant(g),
        Pass::Forward | Pass::GradInput => planes::variant(pass, g),
    };
    if let Some(narrow) = narrow {
        variants.insert(if narrow::pays(g) { 0 } else { variants.len() }, narrow);
    }
    if let Some(winograd) = winograd::variant(pass, g, caps) {
        variants.insert(if winograd::pays(g, product, caps) { 0 } else { variants.len() }, winograd);
    }
    variants
}

/// The operands and results of a pass that are in bf16, if there are variants for images in bf16.
pub(super) fn bf16(pass: Pass, g: &ConvShape, caps: &Caps) -> Option<Bf16> {
    if on_bf16(pass, g, caps).is_empty() {
        return None;
    }
    let [input, output] = [g.input(), g.output()].map(|shape| Channels::of(shape).is_some());
    let operands: &[usize] = match (pass, input, output) {
        (Pass::Forward, true, _) | (Pass::GradInput, _, true) | (Pass::GradWeight, true, false) => &[0],
        (Pass::GradWeight, false, true) => &[1],
        (Pass::GradWeight, true, true) => &[0, 1],
        _ => &[],
    };
    let stores = match pass {
        Pass::Forward if output => Stores::Lines,
        Pass::GradInput if input => Stores::Lines,
        Pass::GradWeight if sums_rows(g.taps(), g.o * g.patch()) => Stores::FullOrLines,
        _ => Stores::Full,
    };
    Some(Bf16 { wanted: true, ..Bf16::new(Innermost::Channels, operands, stores) })
}

/// Variants of a pass where images whose channels fall into lines are in bf16, best first. If only one of its images
/// does, the other is padded first if it is read, and stored in `f32` if it is the result. Networks begin and end with
/// such convolutions.
fn on_bf16(pass: Pass, g: &ConvShape, caps: &Caps) -> Vec<Variant> {
    let pixels = g.inputs().min(g.outputs());
    let in_lines = [g.input(), g.output()].map(|shape| Channels::of(shape).is_some());
    if !caps.bf16 || pixels < 2 || in_lines == [false; 2] {
        return Vec::new();
    }
    let mut variants = match (pass, Convolution::new(pass, g)) {
        (Pass::GradWeight, _) => taps_weight::variants(g, caps),
        (Pass::Forward | Pass::GradInput, None) => Vec::new(),
        (Pass::Forward | Pass::GradInput, Some(convolution)) => taps::variants(&convolution, caps),
    };
    let narrow = match pass {
        _ if in_lines != [true; 2] => None,
        Pass::GradWeight => lines_weight::variant(g, caps),
        Pass::Forward | Pass::GradInput => lines::variant(pass, g, caps),
    };
    if let Some(narrow) = narrow {
        variants.insert(if narrow::pays(g) { 0 } else { variants.len() }, narrow);
    }
    // The images among its operands.
    let images = match pass {
        Pass::Forward => [Some(g.input()), None],
        Pass::GradInput => [Some(g.output()), None],
        Pass::GradWeight => [Some(g.input()), Some(g.output())],
    };
    for (operand, image) in images.into_iter().enumerate() {
        if let Some(image) = image.filter(|&image| Channels::of(image).is_none()) {
            variants.iter_mut().for_each(|variant| pad(variant, operand, image));
        }
    }
    variants
}

/// Prepends a launch that converts an operand, an image in `f32`, to lines, padded with channels of zeros.
fn pad(variant: &mut Variant, operand: usize, shape: Shape) {
    let (n, c) = (shape[0], shape[1]);
    let pixels = shape.elements() / (n * c);
    let (from, to) = (Binding::Input(operand), Binding::Scratch(variant.scratch.len()));
    let bindings = variant.launches.iter_mut().flat_map(|launch| &mut launch.bindings);
    bindings.filter(|binding| **binding == from).for_each(|binding| *binding = to);
    let launch = conversion("bf16", [n, c, pixels]);
    variant.launches.insert(0, Launch { bindings: vec![from, to], ..launch });
    variant.scratch.push(n * pixels * c.next_multiple_of(LINE) / 2);
}

/// A pass as a matrix product for each group.
fn product(pass: Pass, g: &ConvShape) -> Product {
    let (o, c, taps) = (g.o / g.groups, g.c / g.groups, g.taps());
    let pixels = g.n * g.outputs();
    let [m, n, k] = match pass {
        Pass::Forward => [o, pixels, c * taps],
        Pass::GradInput => [c, g.n * g.inputs(), o * taps],
        Pass::GradWeight => [o, c * taps, pixels],
    };
    let image = if pass == Pass::Forward { g.outputs() } else { g.inputs() };
    let beside = pass != Pass::GradWeight && image.is_multiple_of(16);
    Product { batch: g.groups, m, n, k, operands: Operands::Gathered, beside }
}

/// The defines of a pass as a convolution: the gradient of the input convolves the cotangents, with taps in reverse
/// order.
fn defines(pass: Pass, g: &ConvShape) -> Vec<Define> {
    let mut defines = if pass == Pass::GradInput { g.defines_of_input() } else { g.defines() };
    if pass != Pass::GradWeight {
        defines.extend(define![FORM: form(pass)]);
    }
    defines
}

/// The kernels' define `FORM`: the order in which they read weights.
fn form(pass: Pass) -> &'static str {
    if pass == Pass::GradInput { "grad_input" } else { "forward" }
}

/// The variants with an invocation for each output, if there is one, and with a workgroup for each.
fn plain(pass: Pass, g: &ConvShape, product: Product, caps: &Caps) -> Vec<Variant> {
    let (Product { m, n, k, .. }, [down, across]) = (product, g.kernel);
    let channels = k / (down * across);
    let (kernel, name, extent) = match pass {
        Pass::Forward => ("conv2d", Some("direct"), [channels * down, across]),
        Pass::GradInput => ("conv2d", Some("gather"), [channels * down, across]),
        // On SwiftShader, barriers take longer than an invocation's whole sum.
        Pass::GradWeight => ("conv2d_grad_weight", (!caps.tiles).then_some("each"), [g.planes() * g.p, g.q]),
    };
    let terms = Terms { kernel, defines: defines(pass, g), bindings: (2, 1), results: g.groups * m * n, extent };
    let one = name.map(|name| Variant::simple(name, terms.clone().by_invocations()));
    let tree = if one.is_some() { Tree::LARGE } else { Tree::of(k) };
    one.into_iter().chain([Variant::simple("tree", terms.by_workgroups(tree))]).collect()
}

fn tiled(pass: Pass, g: &ConvShape, choice: Choice, product: Product) -> Variant {
    let (o, c) = (g.o / g.groups, g.c / g.groups);
    let fours = |extent: usize| extent.is_multiple_of(4);
    let (kernel, by_taps, across) = match pass {
        Pass::Forward => ("conv2d_gemm", fours(o) && fours(c), [fours(o) && fours(c), true]),
        Pass::GradInput => ("conv2d_gemm", fours(o) && fours(c), [true, true]),
        Pass::GradWeight => ("conv2d_grad_weight_gemm", fours(c), [false, false]),
    };
    let packed = by_taps && pass != Pass::GradWeight;
    let weights = if packed { Binding::Scratch(choice.scratch()) } else { Binding::Input(1) };
    let mut defines = defines(pass, g);
    defines.extend(define![ORDER: if by_taps { "taps" } else { "channels" }]);
    if pass == Pass::GradWeight && fours(g.outputs()) {
        defines.extend(define![FOURS: 1]);
    }
    let may_skip = pass == Pass::GradInput && by_taps;
    let skips = may_skip.then(|| g.skips()).flatten().zip(choice.skippable(product));
    let steps = skips.map_or(0, |(skips, steps)| {
        defines.extend(skips);
        steps
    });
    let operands = [Binding::Input(0), weights];
    let launch = |sums| {
        let mut launch = choice.launch(kernel, defines, product, &operands, across, sums);
        launch.workgroups.loops += steps;
        launch
    };
    let mut variant = choice.variant(product, launch);
    if packed {
        pack(&mut variant, g, form(pass));
    }
    variant
}

/// Prepends a launch that packs the weights into a further scratch buffer, in the order in which the product reads
/// them.
fn pack(variant: &mut Variant, g: &ConvShape, form: &'static str) {
    let (bindings, len) = (vec![Binding::Input(1), Binding::Scratch(variant.scratch.len())], g.o * g.patch());
    let (o, c, taps) = (g.o / g.groups, g.c / g.groups, g.taps());
    let launch = transform("conv2d_pack", define![LEN: len, TAPS: taps, GROUP_O: o, GROUP_C: c, FORM: form], len);
    variant.launches.insert(0, Launch { bindings, ..launch });
    variant.scratch.push(len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::launch::Access;
    use crate::ops::Conv2dOptions;

    #[test]
    fn kernels_that_read_bf16_store_once_and_in_lines() {
        let caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
        for (x, w, stride) in [
            ([2, 16, 9, 8], [24, 16, 3, 3], 1),
            ([128, 64, 32, 32], [64, 64, 3, 3], 1),
            ([64, 64, 16, 16], [128, 64, 3, 3], 2),
            ([8, 256, 8, 8], [128, 256, 1, 1], 1),
            ([8, 60, 28, 28], [100, 60, 3, 3], 2),
            ([8, 10, 28, 28], [7, 10, 3, 3], 1),
        ] {
            let options = Conv2dOptions { stride: [stride; 2], padding: [w[2] / 2; 2], ..Conv2dOptions::default() };
            let g = ConvShape::new(Shape::from(x), Shape::from(w), options).expect("the shapes fit");
            for pass in [Pass::Forward, Pass::GradInput, Pass::GradWeight] {
                let bf16 = bf16(pass, &g, &caps).expect("channels are multiples of eight");
                let variants = on_bf16(pass, &g, &caps);
                assert!(!variants.is_empty());
                for variant in &variants {
                    let stores: Vec<_> = variant.launches.iter().filter(|launch| launch.stores).collect();
                    assert_eq!(stores.len(), 1, "{}", variant.name);
                    assert_eq!(stores[0].access == Access::Lines, bf16.stores == Stores::Lines, "{}", variant.name);
                    assert_eq!(variants.iter().filter(|other| other.name == variant.name).count(), 1);
                }
            }
        }
    }

    #[test]
    fn images_with_few_channels_are_padded_to_lines() {
        let caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
        let options = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
        // The operands that are read as bf16, and the kernels of the first and the last launch.
        let found = |x: [usize; 4], w: [usize; 4], pass| {
            let g = ConvShape::new(Shape::from(x), Shape::from(w), options).expect("the shapes fit");
            let variant = on_bf16(pass, &g, &caps).swap_remove(0);
            let ends = [0, variant.launches.len() - 1].map(|at| variant.launches[at].kernel);
            (bf16(pass, &g, &caps).expect("there are variants").operands, ends)
        };
        let (begin, end) = (([8, 3, 9, 7], [64, 3, 3, 3]), ([8, 64, 9, 7], [3, 64, 3, 3]));
        let passes = [Pass::Forward, Pass::GradInput, Pass::GradWeight];
        let [pack, sum] = ["conv2d_pack_taps", "sum_parts"];
        assert_eq!(
            passes.map(|pass| found(begin.0, begin.1, pass)),
            [(&[][..], ["convert", "conv2d_taps"]), (&[0], [pack, sum]), (&[1], ["convert", sum])]
        );
        assert_eq!(
            passes.map(|pass| found(end.0, end.1, pass)),
            [(&[0][..], [pack, sum]), (&[], ["convert", "conv2d_taps"]), (&[0], ["convert", sum])]
        );
    }

    #[test]
    fn images_of_one_pixel_and_those_of_few_channels_stay_in_f32() {
        let caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
        for (x, w) in [([2, 8, 1, 1], [8, 8, 1, 1]), ([2, 4, 5, 5], [3, 4, 3, 3]), ([2, 8, 3, 3], [8, 8, 3, 3])] {
            let g = ConvShape::new(Shape::from(x), Shape::from(w), Conv2dOptions::default()).expect("the shapes fit");
            assert_eq!(bf16(Pass::Forward, &g, &caps), None);
        }
        let g = ConvShape::new(Shape::from([2, 8, 5, 5]), Shape::from([8, 8, 3, 3]), Conv2dOptions::default());
        assert_eq!(bf16(Pass::Forward, &g.expect("the shapes fit"), &Caps { bf16: false, ..caps }), None);
    }
}
