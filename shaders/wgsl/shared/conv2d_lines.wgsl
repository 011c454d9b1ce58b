// Inputs of a convolution of few channels in bf16, with channels innermost: those of a line of eight output channels.
// Output channel o belongs to group ⌊o/OUT⌋, and its group reads IN channels.
//
// Bindings: 0  x[N,IN_D,H,W,CHANNELS]
//
// Defines: CHANNELS    of the image that is read, padded to whole lines
//          OUTPUTS     output channels
//          IN, OUT     channels of a group
//          READS       lines: the channels that a line of outputs reads are whole lines, or lie in one. elements: they
//                      are read one by one
//          LINES_READ  the lines that are read for a line of outputs; 1 where READS is elements
//          SHIFTED     defined where they are only a part of one line
//          AT_ONCE     input channels of each group that are read at once: IN, or 1 where READS is elements
//          SPREAD      for each number k below AT_ONCE, `fn spread_k(x: Inputs) -> Eight`: for each output channel of a
//                      line, input channel k of its group

#include "shared/bf16"

const CHANNELS: u32 = ${CHANNELS};
const OUTPUTS: u32 = ${OUTPUTS};
const IN: u32 = ${IN};
const OUT: u32 = ${OUT};
const AT_ONCE: u32 = ${AT_ONCE};

struct Inputs {
#for L in LINES_READ
    line_${L}: Eight,
#endfor
}

${SPREAD}

#if READS == lines
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;

/// Lines as they are in memory.
struct Words {
#for L in LINES_READ
    line_${L}: vec4<u32>,
#endfor
}

/// What output channels 8 · line to 8 · line + 7 read at a pixel; zeros if it is not there.
fn words(there: bool, pixel: u32, line: u32, turn: u32) -> Words {
    let first = 8u * line / OUT * IN;
    let at = select(0u, pixel * (CHANNELS / 8u), there);
#for L in LINES_READ
    // The padding of the outputs may begin before their last input line.
    let words_${L} = select(vec4<u32>(), x[at + min(first / 8u + ${L}u, CHANNELS / 8u - 1u)], there);
#endfor
#if SHIFTED
    let by = first % 8u;
    let fours = select(words_0, words_0.zwzw, by >= 4u);
    let twos = select(fours, fours.yyww, by % 4u >= 2u);
    return Words(select(twos, twos >> vec4(16u), by % 2u == 1u));
#else
    return Words(
#for L in LINES_READ
        words_${L},
#endfor
    );
#endif
}

fn inputs(words: Words) -> Inputs {
    return Inputs(
#for L in LINES_READ
        eight_of(words.line_${L}),
#endfor
    );
}
#else
@group(0) @binding(0) var<storage, read> x: array<u32>;

fn element(at: u32) -> f32 {
    return bf16_at(x[at / 2u], at);
}

/// What output channels 8 · line to 8 · line + 7 read at a pixel as channel `turn` of their groups; zeros if it is not
/// there.
fn words(there: bool, pixel: u32, line: u32, turn: u32) -> Inputs {
    let begin = select(0u, pixel * CHANNELS + turn, there);
#for E in 8
    let input_${E} = element(begin + min(8u * line + ${E}u, OUTPUTS - 1u) / OUT * IN);
#endfor
    let first = vec4(input_0, input_1, input_2, input_3);
    let second = vec4(input_4, input_5, input_6, input_7);
    let zeros = vec4<f32>();
    return Inputs(Eight(select(zeros, first, there), select(zeros, second, there)));
}

fn inputs(words: Inputs) -> Inputs {
    return words;
}
#endif
