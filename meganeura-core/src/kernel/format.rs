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
    /// bf16 with the channels of images innermost: a line is eight neighbouring channels of a pixel.
    ChannelsLast(Channels),
}

/// The channels of images `[N, C, …]` whose memory is `[N, …, C]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Channels {
    /// The number of channels, a multiple of [`LINE`].
    pub channels: usize,
    /// Elements of a channel of one image, more than one.
    pub pixels: usize,
}

impl Channels {
    /// The channels of images `[N, C, H, W]` of more than one pixel. `None` for other shapes, or if `C` is not a
    /// multiple of [`LINE`].
    #[must_use]
    pub fn of(shape: Shape) -> Option<Self> {
        let &[_, channels, h, w] = shape.dims() else { return None };
        (channels.is_multiple_of(LINE) && channels > 0 && h * w > 1).then_some(Self { channels, pixels: h * w })
    }

    /// The elements of an image.
    #[must_use]
    pub fn image(self) -> usize {
        self.channels * self.pixels
    }
}

impl Format {
    /// Bf16 in the order of the API, for a shape of whole lines.
    #[must_use]
    pub fn rows(shape: Shape) -> Option<Self> {
        (shape.elements() > 0 && shape.elements().is_multiple_of(LINE)).then_some(Self::Bf16)
    }

    /// Bf16 with the channels of images innermost, for images that have whole lines of them.
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
            Self::Full | Self::Bf16 => None,
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
            Self::ChannelsLast(channels) => elements.is_multiple_of(channels.image()),
        }
    }

    /// The layout of a contiguous tensor, or a reshape of it, in memory of this format. `None` if no strides express
    /// it.
    #[must_use]
    pub fn layout(self, shape: Shape) -> Option<Layout> {
        let Self::ChannelsLast(Channels { channels, pixels }) = self else { return Some(Layout::contiguous(shape)) };
        let images = shape.elements() / (channels * pixels);
        // From the last axis on: each is of pixels, of channels or of images.
        let mut parts = [(pixels, channels), (channels, 1), (images, channels * pixels)].into_iter();
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

    /// The layout of so many elements in the order of the memory: of bf16 `[pixels, channels]`, where a line is eight
    /// channels.
    #[must_use]
    pub fn in_memory(self, elements: usize) -> Layout {
        let innermost = match self {
            Self::Full => return Layout::contiguous(Shape::from([elements])),
            Self::Bf16 => LINE,
            Self::ChannelsLast(Channels { channels, .. }) => channels,
        };
        Layout::contiguous(Shape::from([elements / innermost, innermost]))
    }

    /// A WGSL expression for the number, in the order of the API, of the element at `place` in memory, a variable of
    /// type `u32`.
    #[must_use]
    pub fn element(self, place: &str) -> String {
        let Some(of @ Channels { channels, pixels }) = self.channels() else { return place.to_owned() };
        let image = of.image();
        format!("{place} / {image}u * {image}u + {place} % {channels}u * {pixels}u + {place} % {image}u / {channels}u")
    }

    /// WGSL expressions for the line that begins at `place`: its first channel, counted through all images, and its
    /// pixel.
    #[must_use]
    pub fn of_line(self, place: &str) -> [String; 2] {
        let Some(of @ Channels { channels, .. }) = self.channels() else { return [place.to_owned(), "0u".to_owned()] };
        let image = of.image();
        [
            format!("{place} / {image}u * {channels}u + {place} % {channels}u"),
            format!("{place} % {image}u / {channels}u"),
        ]
    }

    /// The distance, in the order of the API, between neighbouring elements of a line: the pixels of an image, or 1.
    #[must_use]
    pub fn pixels(self) -> usize {
        self.channels().map_or(1, |channels| channels.pixels)
    }
}

/// [`lies_in_lines`], along the last axis.
#[must_use]
pub fn lies_in_rows(layout: &Layout) -> bool {
    lies_in_lines(layout) && layout.strides().last() == Some(&1)
}

/// `true` if a matrix, or a batch of them, lies in lines: elements are adjacent along one of its last two axes, and
/// that axis' extent, the offset and all other strides are multiples of a line.
#[must_use]
pub fn lies_in_lines(layout: &Layout) -> bool {
    let shape = layout.shape();
    let (dims, strides) = (shape.dims(), layout.strides());
    let [.., down, across] = *strides else { return false };
    let along = if across == 1 { dims.len() - 1 } else { dims.len() - 2 };
    let is_whole = |(axis, stride): (usize, &usize)| axis == along || stride.is_multiple_of(LINE);
    (across == 1 || down == 1)
        && dims[along].is_multiple_of(LINE)
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
}
