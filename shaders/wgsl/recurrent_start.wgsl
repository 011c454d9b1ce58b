// The initial state of a recurrent layer becomes the first of the states of all steps: hidden[HIDDEN_TO + i] = h[i],
// and with CELLS cells[CELLS_TO + i] = c[i].
//
// Bindings: h[ELEMENTS] → hidden, and with CELLS c[ELEMENTS] → cells; in this order. ⌈ELEMENTS/WG⌉ workgroups.
//
// Defines: those of shared/elements; ELEMENTS; HIDDEN_TO, CELLS_TO; CELLS defined for an lstm

#include "shared/elements"

const ELEMENTS: u32 = ${ELEMENTS};

@group(0) @binding(0) var<storage, read> h: array<f32>;
@group(0) @binding(1) var<storage, read_write> hidden: array<f32>;
#if CELLS
@group(0) @binding(2) var<storage, read> c: array<f32>;
@group(0) @binding(3) var<storage, read_write> cells: array<f32>;
#endif

fn compute(i: u32) {
    hidden[${HIDDEN_TO}u + i] = h[i];
#if CELLS
    cells[${CELLS_TO}u + i] = c[i];
#endif
}
