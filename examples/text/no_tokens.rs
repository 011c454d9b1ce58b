//! In place of `tokens.rs`, without the feature `tokenizers`.

use std::convert::Infallible;
use std::error::Error;
use std::path::Path;

pub const BYTES: usize = 256;

/// Nothing: [`learn`](Self::learn) fails.
pub struct Tokens(Infallible);

impl Tokens {
    pub fn learn(_: &str, _: usize) -> Result<Self, Box<dyn Error>> {
        Err("--tokens: this program was built without `tokenizers`; `cargo run --features tokenizers …` builds it with \
             them"
            .into())
    }

    pub fn count(&self) -> usize {
        match self.0 {}
    }

    pub fn encode(&self, _: &str) -> Result<Vec<u32>, Box<dyn Error>> {
        match self.0 {}
    }

    pub fn decode(&self, _: &[u32]) -> Result<String, Box<dyn Error>> {
        match self.0 {}
    }

    pub fn save(&self, _: &Path) -> Result<(), Box<dyn Error>> {
        match self.0 {}
    }
}
