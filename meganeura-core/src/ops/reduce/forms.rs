//! The launches of a reduction on a GPU, to numbers or to indices: the forms, and the choice for each shape.
//!
//! | results are adjacent | elements of each | results | form |
//! |---|---|---|---|
//! | any | below 8 | any | serial |
//! | yes | up to 32, or of 65,536 results | any | serial |
//! | yes | up to 4096, 2²² in all | 256 or more, where workgroups of 512 fit | tall columns |
//! | yes | less than 64 for each invocation | any | columns |
//! | yes | more | fill 512 workgroups | columns |
//! | yes | more | fewer | split columns |
//! | no | less than 64 for each invocation | any | rows |
//! | no | more | fill 512 workgroups | rows |
//! | no | more | fewer | split rows |
//!
//! Sums of channels of images in bf16, or of columns of rows in bf16, have a form of their own, which reads eight at a
//! time.

use crate::kernel::gemm::{Parts, sum_parts_at};
use crate::kernel::launch::{
    Argument, Binding, Caps, Format, LINE, Launch, Multiprocessors, Variant, Workgroups, define, tree,
};
use crate::kernel::offset::offset;
use crate::ops::segments::{RUN, Segments};
use crate::{DType, Layout};

/// The kernel of a reduction.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Reduction {
    pub(in crate::ops) kernel: &'static str,
    /// What the kernel computes: its define `OP`.
    pub(in crate::ops) op: &'static str,
    /// Words of the result of a part, in scratch and in workgroup memory.
    pub(in crate::ops) words: usize,
    /// `true` if the kernel stores results through `shared/epilogue`.
    pub(in crate::ops) stores: bool,
}

/// The layouts of a reduction's results and of the elements of each, and their numbers.
struct Extents {
    kept: Layout,
    reduced: Layout,
    outs: usize,
    len: usize,
    element: DType,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Serial,
    Rows,
    Columns,
    TallColumns,
    SplitRows,
    SplitColumns,
}

impl Form {
    const ALL: [Self; 6] =
        [Self::Serial, Self::Rows, Self::Columns, Self::TallColumns, Self::SplitRows, Self::SplitColumns];

    fn best(extents: &Extents, caps: &Caps) -> Self {
        let &Extents { kept, reduced, outs, len, .. } = extents;
        let side_by_side = |layout: &Layout| layout.strides().last().is_some_and(|&stride| stride == 1);
        let columns = side_by_side(&kept) && !side_by_side(&reduced);
        if len < 8 || (columns && (len <= 32 || outs >= 1 << 16)) {
            return Self::Serial;
        }
        if columns && Self::TallColumns.fits(caps) && outs >= 256 && len <= 4096 && outs * len <= 1 << 22 {
            return Self::TallColumns;
        }
        let (whole, split) = if columns { (Self::Columns, Self::SplitColumns) } else { (Self::Rows, Self::SplitRows) };
        if whole.segments(outs, len).is_split(outs, len) { split } else { whole }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Rows => "rows",
            Self::Columns => "columns",
            Self::TallColumns => "tall columns",
            Self::SplitRows => "split rows",
            Self::SplitColumns => "split columns",
        }
    }

    fn segments(self, outs: usize, len: usize) -> Segments {
        match self {
            Self::Serial => Segments::SERIAL,
            Self::Rows | Self::SplitRows => Segments::rows(len),
            Self::Columns | Self::SplitColumns => Segments::columns(outs),
            Self::TallColumns => Segments::TALL,
        }
    }

    fn fits(self, caps: &Caps) -> bool {
        self != Self::TallColumns || Segments::TALL.fits(caps)
    }

    fn variant(self, reduction: Reduction, extents: &Extents) -> Variant {
        let &Extents { kept, reduced, outs, len, element } = extents;
        let segments = self.segments(outs, len);
        let places = (offset(&kept, "o"), offset(&reduced, "r"));
        let (input, output) = (Binding::Input(0), Binding::Output(0));
        if !matches!(self, Self::SplitRows | Self::SplitColumns) {
            let launch = launch((reduction, element), segments, (outs, len, 1), places, [input, output]);
            return Variant { name: self.name(), launches: vec![launch], scratch: Vec::new() };
        }
        let parts = segments.parts(outs, len, true);
        let first = launch((reduction, element), segments, (outs, len, parts), places, [input, Binding::Scratch(0)]);
        let segments = if parts < 8 { Segments::SERIAL } else { Segments::columns(outs) };
        let places = ("o".into(), format!("r * {outs}u"));
        let second = launch((reduction, element), segments, (outs, parts, 1), places, [Binding::Scratch(0), output]);
        Variant {
            name: self.name(),
            launches: vec![first, second],
            scratch: vec![parts.saturating_mul(outs).saturating_mul(reduction.words)],
        }
    }
}

fn launch(
    (reduction, element): (Reduction, DType),
    segments: Segments,
    (outs, len, parts): (usize, usize, usize),
    (base, step): (String, String),
    bindings: [Binding; 2],
) -> Launch {
    let name = |binding, named: &'static str| if matches!(binding, Binding::Scratch(_)) { "scratch" } else { named };
    let (from, to) = (name(bindings[0], "operand"), name(bindings[1], "result"));
    let mut defines = segments.defines(len, parts);
    let fold = match segments.each(len, parts) {
        ..4 => "few",
        4..=RUN => "run",
        _ => "stretches",
    };
    defines.extend(define![
        OP: reduction.op, FOLD: fold, OUTS: outs, LEN: len, BLOCKS: segments.blocks(outs), BASE: base, STEP: step,
        FROM: from, TO: to, ELEMENT: element,
    ]);
    // Four elements at a time, then up to three single ones; sixteen times four are a run, sixteen runs a stretch.
    let steps = segments.loops(len.div_ceil(4), parts, 1);
    let loops = steps.saturating_add(steps / 16 + steps / 256).saturating_add(7);
    let workgroups = segments.workgroups(outs, parts, loops, reduction.words);
    let mut launch = Launch::new(reduction.kernel, defines, (0, 0), workgroups);
    launch.bindings = bindings.into();
    if from == "operand" {
        launch = launch.loads_through_prologue(0);
    }
    if to == "result" && reduction.stores { launch.stores_through_epilogue() } else { launch }
}

/// All forms, best first.
pub(in crate::ops) fn variants(reduction: Reduction, x: &Argument, axes: &[usize], caps: &Caps) -> Vec<Variant> {
    let (kept, reduced) = x.layout.split(axes);
    let (kept, reduced) = (kept.collapse(), reduced.collapse());
    let (outs, len) = (kept.shape().elements(), reduced.shape().elements());
    let extents = Extents { kept, reduced, outs, len, element: x.ty.dtype };
    let best = Form::best(&extents, caps);
    let rest = Form::ALL.into_iter().filter(|form| *form != best && form.fits(caps));
    let forms = std::iter::once(best).chain(rest).map(|form| form.variant(reduction, &extents));
    lines(reduction.op, x, &extents).into_iter().chain(forms).collect()
}

/// Sums of the channels of images that are stored in lines, over all pixels; in parts first.
fn lines(op: &'static str, x: &Argument, extents: &Extents) -> Option<Variant> {
    const GROUP: usize = 256;
    /// The lines of a pixel that a workgroup sums: 64 adjacent bytes.
    const EIGHTS: usize = 4;
    /// The reads of an invocation in a run, which has a sum of its own.
    const RUN: usize = 16;
    /// The number of workgroups that keeps a large GPU busy, and of parts that are quickly added up.
    const WORKGROUPS: usize = Multiprocessors::LARGE.enough(2);
    const PARTS: usize = 64;

    let &Extents { kept, reduced, outs, len, .. } = extents;
    let of_channels = |layout: &Layout, stride: usize| layout.offset() == 0 && layout.strides() == [stride];
    let pitch = match x.format {
        Format::Full | Format::Bf16 => outs,
        Format::PaddedRows(of) => of.pitch(),
        Format::ChannelsLast(of) => of.pitch(),
    };
    let is_whole = of_channels(&kept, 1) && of_channels(&reduced, pitch);
    let falls_into_lines = match x.format {
        Format::Full => false,
        Format::Bf16 => outs.is_multiple_of(LINE),
        Format::PaddedRows(of) => of.len == outs,
        Format::ChannelsLast(of) => of.channels == outs,
    };
    if op != "sum" || !is_whole || !falls_into_lines {
        return None;
    }
    let (blocks, rows) = ((pitch / LINE).div_ceil(EIGHTS), GROUP / EIGHTS);
    let chunk = len.div_ceil((WORKGROUPS / blocks).clamp(1, PARTS)).next_multiple_of(rows);
    let parts = len.div_ceil(chunk);
    let defines = define![
        PIXELS: len, C: pitch, PARTS: parts, CHUNK: chunk, EIGHTS: EIGHTS, BLOCKS: blocks, ROWS: rows, RUN: RUN,
    ];
    let workgroups = Workgroups::new(parts * blocks, GROUP)
        .with_memory(&[4 * LINE * GROUP])
        .looping((chunk / rows).next_multiple_of(RUN) + tree(GROUP));
    let launch = Launch::new("reduce_lines", defines, (1, 0), workgroups).loads_through_prologue(0).by_lines();
    let first = Launch { bindings: vec![Binding::Scratch(0)], ..launch };
    let second = sum_parts_at(parts, outs, 0, &Parts { elements: pitch, taps: 1, at: "i".into() });
    Some(Variant { name: "lines", launches: vec![first, second], scratch: vec![parts * pitch] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, TensorType};

    const SUM: Reduction = Reduction { kernel: "reduce", op: "sum", words: 1, stores: true };

    fn best(shape: &[usize], axes: &[usize], caps: &Caps) -> Variant {
        let ty = TensorType::new(DType::F32, Shape::new(shape));
        variants(SUM, &Argument::contiguous(ty), axes, caps).swap_remove(0)
    }

    #[test]
    fn the_form_follows_the_shape() {
        for (shape, axes, name) in [
            (&[10_000_000][..], &[0][..], "split rows"),
            (&[5000], &[0], "rows"),
            // rows of a matrix
            (&[60_000, 10], &[1], "rows"),
            (&[60_000, 7], &[1], "serial"),
            (&[4096, 4096], &[1], "rows"),
            (&[16, 1_000_000], &[1], "split rows"),
            // columns of a matrix: the gradient of a bias
            (&[32, 1000], &[0], "serial"),
            (&[512, 1000], &[0], "tall columns"),
            (&[5000, 1000], &[0], "split columns"),
            (&[2000, 200], &[0], "split columns"),
            (&[100, 200], &[0], "columns"),
            (&[100_000, 10], &[0], "split columns"),
            (&[1000, 100_000], &[0], "serial"),
            // the gradient of a convolution's bias
            (&[32, 64, 56, 56], &[0, 2, 3], "split rows"),
            (&[8, 64, 7, 7], &[0, 2, 3], "rows"),
            // a mean over channels at each pixel
            (&[4, 64, 7, 7], &[1], "columns"),
        ] {
            assert_eq!(best(shape, axes, &Caps::DISCRETE).name, name, "{shape:?} over {axes:?}");
        }
        let small = Caps { workgroup_size: 256, ..Caps::DISCRETE };
        assert_eq!(best(&[512, 1000], &[0], &small).name, "split columns");
    }
}
