// A module that a user writes.
//
// Defines: SOURCE  its WGSL
${SOURCE}
