// A module that a user brings whole.
//
// Defines: SOURCE
${SOURCE}
