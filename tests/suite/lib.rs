//! The README's programs, compiled and run. The other tests are in `main.rs`.
#![doc = include_str!("../../README.md")]
