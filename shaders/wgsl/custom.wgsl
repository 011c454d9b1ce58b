// A module whose WGSL a user writes.
//
// Defines: SOURCE
${SOURCE}
