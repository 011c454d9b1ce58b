// The window of a pooling, over planes or over images in lines.
//
// Defines: those of shared/window
//          SIDE  values of a pixel: 1, or the lines of an image, of which there are N then

#include "shared/window"

const SIDE: u32 = ${SIDE};
