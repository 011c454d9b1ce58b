//! The benchmark when it was built without the formats of pictures.

use meganeura::data::Batch;
use meganeura::prelude::*;
use meganeura::{Error, ErrorKind};

/// There are none.
pub enum Pictures {}

impl Pictures {
    pub fn new(_: &Device, _: Shape, _: u32, _: usize) -> Result<Self> {
        let message =
            "--workers reads pictures; `cargo run --features images …` builds this program with their formats";
        Err(Error::new(ErrorKind::Argument, message))
    }

    pub fn next(&mut self) -> Result<Batch> {
        match *self {}
    }
}
