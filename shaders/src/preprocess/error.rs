//! The ways in which an expansion can fail.

use std::{error::Error, fmt};

/// A line of a WGSL file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file's name, without folder `wgsl/` and extension: `shared/grid`.
    pub file: String,
    /// Counted from one.
    pub line: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.wgsl:{}", self.file, self.line)
    }
}

/// The error of [`expand`](crate::expand).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpandError {
    /// No kernel has this name.
    UnknownKernel {
        /// The name that was asked for.
        kernel: String,
    },
    /// No file has the name that an `#include` gives.
    UnknownInclude {
        /// The `#include`.
        at: Location,
        /// The name it gives.
        name: String,
    },
    /// No macro before this line has the name that an `#insert` gives.
    UnknownMacro {
        /// The `#insert`.
        at: Location,
        /// The name it gives.
        name: String,
    },
    /// An `#insert` that would insert a macro into itself.
    Circular {
        /// The `#insert`.
        at: Location,
        /// The macro's name.
        name: String,
    },
    /// A hole, or a comparison in an `#if`, needs a define that was not given.
    Undefined {
        /// The first such line.
        at: Location,
        /// The define's name.
        name: String,
    },
    /// A define that nothing in the kernel mentions.
    Unused {
        /// The kernel.
        kernel: String,
        /// The define's name.
        name: String,
    },
    /// A define or a macro that was given twice.
    Duplicate {
        /// Its name.
        name: String,
    },
    /// An `#if`, `#for` or `#macro` without its end, or an `#elif`, an `#else` or an end without its beginning.
    Unbalanced {
        /// The directive that stands alone.
        at: Location,
        /// The directive: `#if`.
        directive: String,
    },
    /// An unknown directive, a directive with wrong operands, or a malformed `${…}`.
    Malformed {
        /// The line's place.
        at: Location,
        /// The line's text, without the blanks around it.
        line: String,
    },
}

impl fmt::Display for ExpandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKernel { kernel } => write!(f, "there is no kernel `{kernel}`"),
            Self::UnknownInclude { at, name } => write!(f, "{at}: there is no file `{name}` to include"),
            Self::UnknownMacro { at, name } => write!(f, "{at}: there is no macro `{name}` to insert"),
            Self::Circular { at, name } => write!(f, "{at}: `{name}` would be inserted into itself"),
            Self::Undefined { at, name } => write!(f, "{at}: `{name}` is used here, but not defined"),
            Self::Unused { kernel, name } => write!(f, "`{name}` is defined, but kernel `{kernel}` does not use it"),
            Self::Duplicate { name } => write!(f, "`{name}` is defined twice"),
            Self::Unbalanced { at, directive } => {
                let other = match directive.as_str() {
                    "#if" => "#endif",
                    "#for" => "#endfor",
                    "#endfor" => "#for",
                    "#macro" => "#endmacro",
                    "#endmacro" => "#macro",
                    _ => "#if",
                };
                write!(f, "{at}: this {directive} has no {other}")
            }
            Self::Malformed { at, line } => write!(f, "{at}: cannot make sense of `{line}`"),
        }
    }
}

impl Error for ExpandError {}
