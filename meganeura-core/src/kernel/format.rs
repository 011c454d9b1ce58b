//! How the elements of a tensor lie in memory.

use crate::{DType, Layout, Shape};

/// Elements of bf16 that are read and written together: 16 bytes.
pub const LINE: usize = 8;

/// The format of a tensor's elements in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Format {
    /// Words of 32 bits, in the order of the API, as users see them.
    #[default]
    Full,
    /// bf16, the upper 16 bits of an `f32`, two in a word, in the order of the API: a line is any eight neighbours, and
    /// a tensor has whole lines.
    Bf16,
    /// bf16 in rows of so many elements, in the order of the API. Each row begins with a line, and zeros fill up its
    /// last line, so that products may sum over them.
    PaddedRows(PaddedRows),
    /// bf16 with the channels of images innermost: a line is eight neighbouring channels of a pixel. Zeros fill up the
    /// last line of each pixel.
    ChannelsLast(Channels),
}

/// Rows of bf16 whose length is not a multiple of [`LINE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PaddedRows {
    /// The elements of a row.
    pub len: usize,
}

impl PaddedRows {
    /// The distance between the beginnings of neighbouring rows.
    #[must_use]
    pub fn pitch(self) -> usize {
        self.len.next_multiple_of(LINE)
    }

    /// The elements in the last line of a row, before the zeros.
    #[must_use]
    pub fn tail(self) -> usize {
        self.len % LINE
    }

    /// `true` if the zeros are at most an eighth of the elements. With more, lines are not worth their memory.
    fn pays(self) -> bool {
        8 * (self.pitch() - self.len) <= self.len
    }
}

/// The channels of images `[N, C, …]` whose memory is `[N, …, C]`, with each pixel padded to whole lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Channels {
    /// The number of channels, without padding.
    pub channels: usize,
    /// Elements of a channel of one image, more than one.
    pub pixels: usize,
}

impl Channels {
    /// The channels of images `[N, C, H, W]`, sequences `[N, C, L]` or volumes `[N, C, D, H, W]` of more than one
    /// pixel. `None` for other shapes, or if padding does not pay.
    #[must_use]
    pub fn of(shape: Shape) -> Option<Self> {
        let &[_, channels, ref pixels @ ..] = shape.dims() else { return None };
        if !(1..=3).contains(&pixels.len()) {
            return None;
        }
        let channels = Self { channels, pixels: pixels.iter().product() };
        (channels.pays() && channels.pixels > 1).then_some(channels)
    }

    /// `true` if a padded pixel has fewer bytes than its channels have in `f32`. Below that, elementwise work would
    /// move no less, and converting would come on top.
    fn pays(self) -> bool {
        self.channels > 0 && self.pitch() < 2 * self.channels
    }

    /// The distance between neighbouring pixels: the channels with their padding.
    #[must_use]
    pub fn pitch(self) -> usize {
        self.channels.next_multiple_of(LINE)
    }

    /// The lines of a pixel.
    #[must_use]
    pub fn lines(self) -> usize {
        self.channels.div_ceil(LINE)
    }

    /// The elements of an image, without padding.
    #[must_use]
    pub fn image(self) -> usize {
        self.channels * self.pixels
    }

    /// The elements of an image in memory.
    fn stored_image(self) -> usize {
        self.pitch() * self.pixels
    }
}

impl Format {
    /// Bf16 in the order of the API without padding, for a shape of whole lines.
    #[must_use]
    pub fn flat(shape: Shape) -> Option<Self> {
        (shape.elements() > 0 && shape.elements().is_multiple_of(LINE)).then_some(Self::Bf16)
    }

    /// Bf16 in rows along the last axis that has more than one element, each of whole lines.
    #[must_use]
    pub fn rows(shape: Shape) -> Option<Self> {
        let len = shape.dims().iter().rev().copied().find(|&extent| extent != 1)?;
        Self::of_rows(len).filter(|_| shape.elements() > 0)
    }

    /// Bf16 in rows of so many elements. `None` if their padding does not pay.
    #[must_use]
    pub fn of_rows(len: usize) -> Option<Self> {
        let padded = PaddedRows { len };
        match padded.tail() {
            0 => Some(Self::Bf16),
            _ => padded.pays().then_some(Self::PaddedRows(padded)),
        }
    }

    /// `true` if [`Format::rows`] of a shape has rows of so many elements.
    #[must_use]
    pub fn has_rows(shape: Shape, len: usize) -> bool {
        let format = Self::rows(shape);
        format.is_some() && format == Self::of_rows(len)
    }

    /// Bf16 with the channels of images innermost, for images of as many as pay.
    #[must_use]
    pub fn images(shape: Shape) -> Option<Self> {
        Channels::of(shape).map(Self::ChannelsLast)
    }

    /// `true` for 16 bits, which are read and written by lines.
    #[must_use]
    pub fn is_bf16(self) -> bool {
        self != Self::Full
    }

    /// The channels that are innermost, if any.
    #[must_use]
    pub fn channels(self) -> Option<Channels> {
        match self {
            Self::ChannelsLast(channels) => Some(channels),
            Self::Full | Self::Bf16 | Self::PaddedRows(_) => None,
        }
    }

    /// The rows that zeros fill up, if any.
    #[must_use]
    pub fn padded_rows(self) -> Option<PaddedRows> {
        match self {
            Self::PaddedRows(rows) => Some(rows),
            Self::Full | Self::Bf16 | Self::ChannelsLast(_) => None,
        }
    }

    /// The elements in the last line of a row, or of a pixel's channels, before the zeros. `None` without padding.
    #[must_use]
    pub fn tail(self) -> Option<usize> {
        let tail = match self {
            Self::Full | Self::Bf16 => 0,
            Self::PaddedRows(rows) => rows.tail(),
            Self::ChannelsLast(of) => of.channels % LINE,
        };
        (tail > 0).then_some(tail)
    }

    /// The elements in memory, with padding, of a tensor of so many elements.
    #[must_use]
    pub fn stored(self, elements: usize) -> usize {
        match self {
            Self::Full | Self::Bf16 => elements,
            Self::PaddedRows(rows) => elements / rows.len * rows.pitch(),
            Self::ChannelsLast(of) => elements / of.channels * of.pitch(),
        }
    }

    /// The bytes of an element.
    #[must_use]
    pub fn element_bytes(self, dtype: DType) -> usize {
        if self.is_bf16() { 2 } else { dtype.bytes() }
    }

    /// `true` if a tensor of so many elements can have this format.
    #[must_use]
    pub fn fits(self, elements: usize) -> bool {
        match self {
            Self::Full => true,
            Self::Bf16 => elements.is_multiple_of(LINE),
            Self::PaddedRows(rows) => elements.is_multiple_of(rows.len),
            Self::ChannelsLast(channels) => elements.is_multiple_of(channels.image()),
        }
    }

    /// The layout of a contiguous tensor, or a reshape of it, in memory of this format. `None` if no strides express
    /// it.
    #[must_use]
    pub fn layout(self, shape: Shape) -> Option<Layout> {
        // From the last axis on: each is of pixels, of channels or of images; or of a row or of rows.
        let parts = match self {
            Self::Full | Self::Bf16 => return Some(Layout::contiguous(shape)),
            Self::PaddedRows(rows) => [(rows.len, 1), (shape.elements() / rows.len, rows.pitch()), (1, 0)],
            Self::ChannelsLast(of) => {
                let images = shape.elements() / of.image();
                [(of.pixels, of.pitch()), (of.channels, 1), (images, of.stored_image())]
            }
        };
        let mut parts = parts.into_iter();
        let (mut left, mut stride) = parts.next()?;
        let mut strides = vec![0; shape.rank()];
        for (axis, &extent) in shape.dims().iter().enumerate().rev().filter(|(_, extent)| **extent > 1) {
            while left == 1 {
                (left, stride) = parts.next()?;
            }
            strides[axis] = stride;
            (left, stride) = (left.is_multiple_of(extent).then_some(left / extent)?, stride * extent);
        }
        Some(Layout::strided(shape, &strides))
    }

    /// The layout of so many elements, with padding, in the order of the memory: of bf16 `[pixels, channels]`, where a
    /// line is eight channels.
    #[must_use]
    pub fn in_memory(self, elements: usize) -> Layout {
        let innermost = match self {
            Self::Full => return Layout::contiguous(Shape::from([elements])),
            Self::Bf16 => LINE,
            Self::PaddedRows(rows) => rows.pitch(),
            Self::ChannelsLast(of) => of.pitch(),
        };
        Layout::contiguous(Shape::from([self.stored(elements) / innermost, innermost]))
    }

    /// A WGSL expression for the number, in the order of the API, of the element at `place` in memory, a variable of
    /// type `u32`.
    #[must_use]
    pub fn element(self, place: &str) -> String {
        if let Some(rows) = self.padded_rows() {
            let (len, pitch) = (rows.len, rows.pitch());
            return format!("{place} / {pitch}u * {len}u + {place} % {pitch}u");
        }
        let Some(of) = self.channels() else { return place.to_owned() };
        let (image, stored, pitch, pixels) = (of.image(), of.stored_image(), of.pitch(), of.pixels);
        format!("{place} / {stored}u * {image}u + {place} % {pitch}u * {pixels}u + {place} % {stored}u / {pitch}u")
    }

    /// WGSL expressions for the line that begins at `place`: its first channel, counted through all images without
    /// padding, and its pixel.
    #[must_use]
    pub fn of_line(self, place: &str) -> [String; 2] {
        let Some(of) = self.channels() else { return [place.to_owned(), "0u".to_owned()] };
        let (channels, stored, pitch) = (of.channels, of.stored_image(), of.pitch());
        [format!("{place} / {stored}u * {channels}u + {place} % {pitch}u"), format!("{place} % {stored}u / {pitch}u")]
    }

    /// A WGSL condition: the line that begins at `place` is the last one of a row, or of a pixel's channels, and has
    /// zeros. `None` without padding.
    #[must_use]
    pub fn has_zeros(self, place: &str) -> Option<String> {
        self.tail()?;
        let (pitch, len) = match self {
            Self::Full | Self::Bf16 => return None,
            Self::PaddedRows(rows) => (rows.pitch(), rows.len),
            Self::ChannelsLast(of) => (of.pitch(), of.channels),
        };
        Some(if pitch == LINE { "true".to_owned() } else { format!("{place} % {pitch}u + {LINE}u > {len}u") })
    }

    /// The distance, in the order of the API, between neighbouring elements of a line: the pixels of an image, or 1.
    #[must_use]
    pub fn pixels(self) -> usize {
        self.channels().map_or(1, |channels| channels.pixels)
    }
}

/// `true` if a matrix, or a batch of them, lies in lines in memory of a format: elements are adjacent along one of its
/// last two axes, that axis has whole lines or is a row that zeros fill up, and the offset and all other strides are
/// multiples of a line.
#[must_use]
pub fn lies_in_lines(layout: &Layout, format: Format) -> bool {
    let shape = layout.shape();
    let (dims, strides) = (shape.dims(), layout.strides());
    let [.., down, across] = *strides else { return false };
    let along = if across == 1 { dims.len() - 1 } else { dims.len() - 2 };
    let is_row = format.padded_rows().is_some_and(|rows| rows.len == dims[along]);
    let is_whole = |(axis, stride): (usize, &usize)| axis == along || stride.is_multiple_of(LINE);
    (across == 1 || down == 1)
        && (is_row || dims[along].is_multiple_of(LINE))
        && layout.offset().is_multiple_of(LINE)
        && strides.iter().enumerate().all(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_lie_innermost() {
        let format = Format::ChannelsLast(Channels { channels: 8, pixels: 15 });
        let strides = |dims: &[usize]| format.layout(Shape::new(dims)).map(|layout| layout.strides().to_vec());
        assert_eq!(strides(&[2, 8, 3, 5]), Some(vec![120, 1, 40, 8]));
        assert_eq!(strides(&[2, 2, 4, 15]), Some(vec![120, 4, 1, 8]));
        assert_eq!(strides(&[2, 1, 8, 1, 15]), Some(vec![120, 0, 1, 0, 8]));
        assert_eq!(strides(&[2, 120]), None);
        assert_eq!(strides(&[16, 15]), None);
        let element = |place: usize| {
            let [n, s, c] = [place / 120, place % 120 / 8, place % 8];
            n * 120 + c * 15 + s
        };
        let layout = format.layout(Shape::from([2, 8, 3, 5])).expect("strides say it");
        assert!((0..240).all(|place| layout.at(element(place)) == place));
    }

    #[test]
    fn channels_are_padded_to_whole_lines() {
        let shape = Shape::from([2, 10, 3, 5]);
        let format = Format::images(shape).expect("six zeros in sixteen");
        assert_eq!(format, Format::ChannelsLast(Channels { channels: 10, pixels: 15 }));
        assert_eq!((format.stored(300), format.in_memory(300).shape()), (480, Shape::from([30, 16])));
        let strides = |dims: &[usize]| format.layout(Shape::new(dims)).map(|layout| layout.strides().to_vec());
        assert_eq!(strides(&[2, 10, 3, 5]), Some(vec![240, 1, 80, 16]));
        assert_eq!(strides(&[2, 5, 2, 15]), Some(vec![240, 2, 1, 16]));
        assert_eq!((strides(&[20, 15]), strides(&[4, 5, 15])), (None, None));
        let layout = format.layout(shape).expect("strides say it");
        let element = |place: usize| place / 240 * 150 + place % 16 * 15 + place % 240 / 16;
        assert!((0..480).filter(|place| place % 16 < 10).all(|place| layout.at(element(place)) == place));
        assert!(!lies_in_lines(&layout.permute(&[0, 2, 3, 1]), format));
        assert_eq!(format.has_zeros("i").as_deref(), Some("i % 16u + 8u > 10u"));
    }

    #[test]
    fn sequences_and_volumes_have_channels_too() {
        let of = |dims: &[usize]| Channels::of(Shape::new(dims));
        let channels = Some(Channels { channels: 16, pixels: 30 });
        assert_eq!([of(&[2, 16, 30]), of(&[2, 16, 5, 6]), of(&[2, 16, 5, 3, 2])], [channels; 3]);
        assert_eq!([of(&[2, 16]), of(&[2, 16, 1]), of(&[2, 16, 1, 1, 1]), of(&[2, 16, 5, 3, 2, 1])], [None; 4]);
    }

    #[test]
    fn pixels_that_would_be_mostly_zeros_are_not_padded() {
        let padded = |channels: usize| Channels::of(Shape::from([1, channels, 2, 2])).map(Channels::pitch);
        assert_eq!([0, 1, 3, 4].map(padded), [None; 4]);
        assert_eq!([5, 7, 8, 9, 60, 100].map(padded), [8, 8, 8, 16, 64, 104].map(Some));
    }

    #[test]
    fn rows_are_padded_to_whole_lines() {
        let shape = Shape::from([2, 3, 23]);
        let format = Format::rows(shape).expect("a zero in 24");
        assert_eq!(format, Format::PaddedRows(PaddedRows { len: 23 }));
        assert_eq!((format.stored(shape.elements()), format.in_memory(138).shape()), (144, Shape::from([6, 24])));
        let strides = |dims: &[usize]| format.layout(Shape::new(dims)).map(|layout| layout.strides().to_vec());
        assert_eq!(strides(&[2, 3, 23]), Some(vec![72, 24, 1]));
        assert_eq!(strides(&[6, 1, 23, 1]), Some(vec![24, 0, 1, 0]));
        assert_eq!(strides(&[6, 23]), Some(vec![24, 1]));
        assert_eq!(strides(&[3, 46]), None);
        assert_eq!(strides(&[138]), None);
        let layout = format.layout(shape).expect("strides say it");
        let element = |place: usize| place / 24 * 23 + place % 24;
        assert!((0..144).filter(|place| place % 24 < 23).all(|place| layout.at(element(place)) == place));
        assert!(lies_in_lines(&layout, format) && lies_in_lines(&layout.permute(&[0, 2, 1]), format));
        assert!(lies_in_lines(&layout.slice(2, 8, 8), format) && !lies_in_lines(&layout.slice(2, 0, 15), format));
        assert!(!lies_in_lines(&Layout::contiguous(shape), Format::Bf16));
    }

    #[test]
    fn rows_that_would_be_mostly_zeros_are_not_padded() {
        let rows = |dims: &[usize]| Format::rows(Shape::new(dims));
        assert_eq!([rows(&[64, 10]), rows(&[64, 1, 3]), rows(&[]), rows(&[0, 23])], [None; 4]);
        assert_eq!([rows(&[7, 16]), rows(&[3, 24, 1])], [Some(Format::Bf16); 2]);
        assert!(rows(&[1, 50_257]).is_some() && Format::has_rows(Shape::from([3, 23]), 23));
        assert!(!Format::has_rows(Shape::from([24, 1]), 1));
    }
}
