// Lines of eight elements on their way to matrix units.

/// Eight elements. What is not there counts as zeros, whatever was read instead: nothing is made of it before it is stored, so
/// that nobody waits for it while there is something to multiply.
struct Line {
    first: vec4<f32>,
    second: vec4<f32>,
    there: bool,
}

fn first_half(line: Line, scale: f32) -> vec4<f16> {
    return vec4<f16>(select(vec4<f32>(), line.first * scale, line.there));
}

fn second_half(line: Line, scale: f32) -> vec4<f16> {
    return vec4<f16>(select(vec4<f32>(), line.second * scale, line.there));
}
