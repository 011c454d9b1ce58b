// Lines of eight elements on their way to matrix units: channels of a pixel, in halves, or weights in f32. What is not there counts as
// zeros, whatever was read instead: nothing is made of it before it is stored, so that nobody waits for it while there is something
// to multiply.

#include "shared/half"

/// A line of weights.
struct FullLine {
    first: vec4<f32>,
    second: vec4<f32>,
    there: bool,
}

fn eight_of_full(line: FullLine) -> Eight {
    let nothing = vec4<f32>();
    return Eight(select(nothing, line.first, line.there), select(nothing, line.second, line.there));
}

/// A line of an image.
struct Line {
    words: vec4<u32>,
    there: bool,
}

fn words_of_line(line: Line) -> vec4<u32> {
    return select(vec4<u32>(), line.words, line.there);
}

fn eight_of_line(line: Line) -> Eight {
    return eight_of(words_of_line(line));
}

/// The pixel, and which eight of its channels, of line `at` of a tile of so many pixels and eights. Some lines are beyond the tile.
/// Neighbours load neighbouring channels. Eight invocations load two lines of each of four pixels, two apart: whole sectors
/// of 32 bytes, which they store to different banks where the distance of pixels is an odd multiple of 16 bytes. The number
/// of eights is even.
fn line_at(at: u32, pixels: u32, eights: u32) -> vec2<u32> {
    let turn = at / 8u;
    let pairs = eights / 2u;
    let pixel = turn / eights * 8u + at / 2u % 4u * 2u + turn / pairs % 2u;
    return vec2(pixel, turn % pairs * 2u + at % 2u);
}

fn scaled(x: Eight, scale: f32) -> Eight {
    return Eight(x.first * scale, x.second * scale);
}

fn magnitude(x: Eight) -> f32 {
    return largest(max(abs(x.first), abs(x.second)));
}

/// The largest magnitude, without what is not finite.
fn finite_magnitude(x: Eight) -> f32 {
    return largest(max(finite_magnitudes(x.first), finite_magnitudes(x.second)));
}
