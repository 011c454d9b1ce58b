// The window of a pooling, over planes or over images in lines.
//
// Defines: those of shared/window
//          SIDE  values of a pixel: 1 for planes; the lines of a pixel for images in lines

#include "shared/window"

const SIDE: u32 = ${SIDE};
