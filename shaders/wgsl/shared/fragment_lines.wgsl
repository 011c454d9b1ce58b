// Fragments of 16×16 of bf16 on matrix units as lines in memory: the eight elements that an invocation holds of a
// fragment, in their order, which is the device's. Subgroups have 32 invocations. As in shared/fragments, the host
// replaces the calls (`gpu/vulkan/fragments.rs`). It compiles matrices A and B of f32 as bf16.

#if BF16_UNITS
alias Left = coop_mat16x16<f32, A>;
alias Right = coop_mat16x16<f32, B>;

fn coop_from_line_left(line: vec4<u32>) -> Left {
    return Left();
}

fn coop_from_line_right(line: vec4<u32>) -> Right {
    return Right();
}

fn coop_to_line_left(x: Left) -> vec4<u32> {
    return vec4<u32>();
}

fn coop_to_line_right(x: Right) -> vec4<u32> {
    return vec4<u32>();
}
#endif
