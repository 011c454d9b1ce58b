// Lines of eight elements on their way to matrix units.

/// Eight elements. What is not there counts as zeros, whatever was read instead: nothing is made of it before it is stored, so
/// that nobody waits for it while there is something to multiply.
struct Line {
    first: vec4<f32>,
    second: vec4<f32>,
    there: bool,
}

fn scaled(line: Line, scale: f32) -> Line {
    let nothing = vec4<f32>();
    let there = line.there;
    return Line(select(nothing, line.first * scale, there), select(nothing, line.second * scale, there), true);
}

/// The largest magnitude in a line that is there.
fn magnitude(line: Line) -> f32 {
    return largest(max(abs(line.first), abs(line.second)));
}

/// The same without what is not finite, of any line.
fn finite_magnitude(line: Line) -> f32 {
    return select(0.0, largest(max(finite_magnitudes(line.first), finite_magnitudes(line.second))), line.there);
}
