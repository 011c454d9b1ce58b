//! The READMEs' programs, compiled and run. The other tests are in `main.rs`.
#![doc = include_str!("../../README.md")]
#![doc = include_str!("../../meganeura/README.md")]
