//! The programs of the READMEs and of the derive's reference, compiled and run. The other tests are in `main.rs`.
#![doc = include_str!("../../README.md")]
#![doc = include_str!("../../meganeura/README.md")]
#![doc = include_str!("../../meganeura-models/README.md")]

#[cfg(doctest)]
#[doc = include_str!("../../meganeura-derive/src/reference.md")]
mod reference {}
