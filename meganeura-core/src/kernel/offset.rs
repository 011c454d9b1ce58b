//! The places of elements in memory, as WGSL expressions of type `u32`.

use super::format::{Format, LINE};
use crate::Layout;

/// An axis with a nonzero stride. The coordinate of element `index` on it is `index / below % extent`.
struct Axis {
    /// Elements of the axes behind it.
    below: usize,
    extent: usize,
    stride: usize,
    /// `true` if no axis is before it: the remainder is the number itself.
    is_first: bool,
}

impl Axis {
    /// The axis' contribution to an offset. `number` is the flat index over this axis and all axes before it.
    fn term(&self, number: String) -> String {
        self.scaled(if self.is_first { number } else { format!("({number}) % {}u", self.extent) })
    }

    /// `coordinate` times the stride.
    fn scaled(&self, coordinate: String) -> String {
        if self.stride == 1 { coordinate } else { format!("({coordinate}) * {}u", self.stride) }
    }
}

/// `number / by`.
fn over(number: &str, by: usize) -> String {
    if by == 1 { number.to_owned() } else { format!("{number} / {by}u") }
}

/// The axes of a layout, and the place of its first element.
fn axes(layout: &Layout) -> (Vec<Axis>, usize) {
    let layout = layout.collapse();
    let (shape, mut below) = (layout.shape(), layout.shape().elements());
    let axes = shape.dims().iter().zip(layout.strides()).enumerate().map(|(axis, (&extent, &stride))| {
        below /= extent;
        Axis { below, extent, stride, is_first: axis == 0 }
    });
    (axes.filter(|axis| axis.stride != 0).collect(), layout.offset())
}

fn sum(mut terms: Vec<String>, begin: usize) -> String {
    if begin != 0 || terms.is_empty() {
        terms.push(format!("{begin}u"));
    }
    terms.join(" + ")
}

/// The place of element number `index` of a layout.
#[must_use]
pub fn offset(layout: &Layout, index: &str) -> String {
    let (axes, begin) = axes(layout);
    sum(axes.iter().map(|axis| axis.term(over(index, axis.below))).collect(), begin)
}

/// The places of a line's elements: neighbouring channels of a pixel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Places {
    /// Element `e` is `steps[e]` after the first, whose place is a multiple of four if they are `aligned`.
    Regular { first: String, steps: [usize; LINE], aligned: bool },
    /// The places of all elements.
    Each([String; LINE]),
}

impl Places {
    /// The places in a layout of the line that begins with channel `c` of pixel `s`, in variables of these names, where
    /// `c` is counted through all images. Where the last line of a pixel is padded, `z` says whether this is it; in the
    /// place of the zeros, its last channel is given again.
    #[must_use]
    pub fn new(layout: &Layout, format: Format, [c, s, z]: [&str; 3]) -> Self {
        let (axes, begin) = axes(layout);
        // Lines begin at multiples of LINE channels, or of those of an image if the last line is padded.
        let image = format.tail().and(format.channels()).map(|of| of.channels);
        let terms: Option<Vec<_>> = axes.iter().map(|axis| Term::new(axis, format.pixels(), image, c, s)).collect();
        let tail = format.tail().unwrap_or(LINE);
        let Some(terms) = terms else {
            let channel =
                |e: usize| if e < tail { format!("{e}u") } else { format!("select({e}u, {}u, {z})", tail - 1) };
            let of = |e| format!("(({c} + {}) * {}u + {s})", channel(e), format.pixels());
            return Self::Each(std::array::from_fn(|e| offset(layout, &of(e))));
        };
        let aligned = begin.is_multiple_of(4) && terms.iter().all(|term| term.aligned);
        let steps = std::array::from_fn(|e| terms.iter().map(|term| term.offsets[e]).sum());
        Self::Regular { first: sum(terms.into_iter().map(|term| term.first).collect(), begin), steps, aligned }
    }

    /// The place of the first of two fours, counted in fours, if all elements are adjacent.
    #[must_use]
    pub fn fours(&self) -> Option<String> {
        match self {
            Self::Regular { first, steps, aligned: true } if *steps == std::array::from_fn(|e| e) => {
                Some(format!("({first}) / 4u"))
            }
            _ => None,
        }
    }
}

/// An axis' contribution to the places of a line.
struct Term {
    first: String,
    /// The offset of each element from the first.
    offsets: [usize; LINE],
    aligned: bool,
}

impl Term {
    /// `None` where a line may go past the end of the axis, or where offsets differ from line to line. `image` is the
    /// number of channels of an image where those are no whole lines.
    fn new(axis: &Axis, pixels: usize, image: Option<usize>, c: &str, s: &str) -> Option<Self> {
        let &Axis { below, extent, stride, is_first } = axis;
        let offsets = |number: &dyn Fn(usize) -> usize| std::array::from_fn(|e| number(e) * stride);
        let aligned = stride.is_multiple_of(4);
        if below.is_multiple_of(pixels) {
            // So many channels share one number of the axis.
            let run = below / pixels;
            let unit = image.unwrap_or(LINE);
            let within = is_first || (extent * run).is_multiple_of(unit);
            let first = axis.term(over(c, run));
            if run.is_multiple_of(unit) {
                return Some(Self { first, offsets: [0; LINE], aligned });
            }
            // Lines begin at a number of the axis.
            let begins = LINE.is_multiple_of(run) && image.is_none_or(|image| image.is_multiple_of(run));
            let aligned = image.is_none() && (aligned || run == 1);
            return (begins && within).then(|| Self { first, offsets: offsets(&|e| e / run), aligned });
        }
        if !is_first && pixels.is_multiple_of(below * extent) {
            let number = over(s, below);
            let first = if pixels == below * extent { axis.scaled(number) } else { axis.term(number) };
            return Some(Self { first, offsets: [0; LINE], aligned });
        }
        let run = pixels / below;
        (is_first && pixels.is_multiple_of(below)).then(|| {
            let first = axis.scaled(format!("{c} * {run}u + {}", over(s, below)));
            Self { first, offsets: offsets(&|e| e * run), aligned }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::kernel::format::Channels;

    #[test]
    fn offsets_are_spelled_short() {
        let x = Layout::contiguous(Shape::from([4, 3, 5]));
        assert_eq!(offset(&x, "i"), "i");
        assert_eq!(offset(&x.slice(0, 1, 2), "i"), "i + 15u");
        let bias = Layout::contiguous(Shape::from([3, 1])).expand(Shape::from([4, 3, 5]));
        assert_eq!(offset(&bias, "i"), "(i / 5u) % 3u");
        assert_eq!(offset(&x.permute(&[2, 0, 1]), "i"), "i / 12u + ((i) % 12u) * 5u");
        assert_eq!(offset(&Layout::contiguous(Shape::SCALAR), "i"), "0u");
    }

    /// Evaluates an expression of numbers, `c`, `s`, `+`, `*`, `/`, `%` and `select` by `z`. Products, quotients and
    /// remainders have the same precedence.
    struct Reader<'a> {
        words: std::iter::Peekable<std::slice::Iter<'a, String>>,
        c: usize,
        s: usize,
        z: bool,
    }

    impl Reader<'_> {
        fn read(text: &str, c: usize, s: usize, z: bool) -> usize {
            let spaced = text.replace('(', " ( ").replace(')', " ) ").replace(',', " , ");
            let words: Vec<_> = spaced.split_whitespace().map(str::to_owned).collect();
            Reader { words: words.iter().peekable(), c, s, z }.sum()
        }

        fn sum(&mut self) -> usize {
            let mut total = self.product();
            while self.words.next_if(|word| *word == "+").is_some() {
                total += self.product();
            }
            total
        }

        fn product(&mut self) -> usize {
            let mut product = self.factor();
            while let Some(operator) = self.words.next_if(|word| ["*", "/", "%"].contains(&word.as_str())) {
                let by = self.factor();
                product = match operator.as_str() {
                    "*" => product * by,
                    "/" => product / by,
                    _ => product % by,
                };
            }
            product
        }

        fn factor(&mut self) -> usize {
            match self.words.next().expect("a number").as_str() {
                "(" => {
                    let inside = self.sum();
                    assert_eq!(self.words.next().map(String::as_str), Some(")"));
                    inside
                }
                "c" => self.c,
                "s" => self.s,
                "select" => {
                    let [open, otherwise, comma, then, end] = [(); 5].map(|()| self.words.next().expect("a word"));
                    assert_eq!([open, comma, end], ["(", ",", ","]);
                    assert_eq!([(); 2].map(|()| self.words.next().expect("a word")), ["z", ")"]);
                    let number = |text: &str| text.trim_end_matches('u').parse().expect("a number");
                    if self.z { number(then) } else { number(otherwise) }
                }
                number => number.trim_end_matches('u').parse().expect("a number"),
            }
        }
    }

    /// Checks the places of all lines against the layout.
    fn check(layout: &Layout, channels: Channels) -> Places {
        let places = Places::new(layout, Format::ChannelsLast(channels), ["c", "s", "z"]);
        let images = layout.shape().elements() / channels.image();
        let lines = (0..images).flat_map(|n| (0..channels.lines()).map(move |line| (n, LINE * line)));
        for ((n, first), s) in lines.flat_map(|line| (0..channels.pixels).map(move |s| (line, s))) {
            let (c, z) = (n * channels.channels + first, first + LINE > channels.channels);
            for e in 0..LINE.min(channels.channels - first) {
                let place = match &places {
                    Places::Regular { first, steps, aligned } => {
                        let first = Reader::read(first, c, s, z);
                        assert!(!aligned || first.is_multiple_of(4), "{layout:?}: {places:?}");
                        first + steps[e]
                    }
                    Places::Each(each) => Reader::read(&each[e], c, s, z),
                };
                let expected = layout.at((c + e) * channels.pixels + s);
                assert_eq!(place, expected, "{layout:?}: {places:?} at {c}, {s}, {e}");
            }
        }
        places
    }

    #[test]
    fn places_of_lines_are_those_of_their_elements() {
        let whole: [(usize, usize, usize, usize); 5] =
            [(3, 16, 2, 3), (2, 24, 3, 1), (1, 8, 4, 4), (2, 40, 1, 2), (5, 48, 2, 2)];
        let padded = [(3, 10, 2, 3), (2, 60, 3, 1), (1, 7, 4, 4), (2, 100, 1, 2), (5, 12, 2, 2)];
        for (n, c, h, w) in whole.into_iter().chain(padded) {
            let is_padded = !c.is_multiple_of(LINE);
            let (shape, channels) = (Shape::from([n, c, h, w]), Channels { channels: c, pixels: h * w });
            let of = |dims: &[usize]| Layout::contiguous(Shape::new(dims));
            check(&of(&[n, c, h, w]), channels);
            check(&of(&[n, c, 2 * h, w]).slice(2, 1, h), channels);
            check(&of(&[n, 2 * c, h, w]).slice(1, 3, c), channels);
            check(&of(&[n, h, w, c]).permute(&[0, 3, 1, 2]), channels);
            check(&of(&[n, c, w, h]).permute(&[0, 1, 3, 2]), channels);
            check(&of(&[1, 1, 1, 1]).expand(shape), channels);
            check(&of(&[1, 1, h, w]).expand(shape), channels);
            check(&of(&[n, 1, 1, w]).expand(shape), channels);
            check(&of(&[n, 1, h, 1]).expand(shape), channels);
            let bias = [of(&[1, c, 1, 1]), of(&[n, c, 1, 1]), of(&[2, c, 1, 1]).slice(0, 1, 1)];
            for places in bias.map(|layout| check(&layout.expand(shape), channels)) {
                assert!(matches!(places, Places::Regular { .. }) && places.fours().is_some() != is_padded);
            }
            let odd = of(&[1, c + 1, 1, 1]).slice(1, 1, c).expand(shape);
            assert!(check(&odd, channels).fours().is_none());
            for groups in (1..=c).filter(|groups| c.is_multiple_of(*groups)) {
                let shape = Shape::from([n, groups, c / groups, h * w]);
                let places = check(&Layout::strided(shape, &[2 * groups, 2, 0, 0]), channels);
                let run = c / groups;
                let is_regular = run.is_multiple_of(LINE) || LINE.is_multiple_of(run) || groups == 1;
                assert_eq!(matches!(places, Places::Regular { .. }), is_regular, "{places:?}");
            }
        }
    }
}
