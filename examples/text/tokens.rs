//! Tokens that are learned from a text: byte pairs, of the crate `tokenizers`.

use std::error::Error;
use std::path::Path;

use tokenizers::Tokenizer;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// The number of different bytes, which are tokens as well, so that every text can be encoded.
pub const BYTES: usize = 256;

/// A vocabulary of bytes and frequent sequences of bytes.
pub struct Tokens(Box<Tokenizer>);

impl Tokens {
    /// Learns at most `count` tokens from a text.
    pub fn learn(text: &str, count: usize) -> Result<Self, Box<dyn Error>> {
        let mut tokenizer = Tokenizer::new(BPE::default());
        // Splits the text into words, and writes each byte as a visible character.
        let bytes = ByteLevel::new(false, true, true);
        tokenizer.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
        let alphabet = ByteLevel::alphabet().into_iter().collect();
        let trainer = BpeTrainer::builder().show_progress(false).vocab_size(count).initial_alphabet(alphabet);
        let learned = tokenizer.train(&mut TrainerWrapper::from(trainer.build()), [text].into_iter());
        learned.map_err(in_words)?;
        Ok(Self(tokenizer.into()))
    }

    /// The number of different tokens.
    pub fn count(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Box<dyn Error>> {
        Ok(self.0.encode_fast(text, false).map_err(in_words)?.get_ids().to_vec())
    }

    pub fn decode(&self, codes: &[u32]) -> Result<String, Box<dyn Error>> {
        Ok(self.0.decode(codes, false).map_err(in_words)?)
    }

    /// Writes the vocabulary as `tokenizer.json`, which `tokenizers` reads in Rust and in Python.
    pub fn save(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        self.0.save(path, true).map_err(|error| format!("{}: {error}", path.display()).into())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn in_words(error: tokenizers::Error) -> String {
    format!("the tokenizer: {error}")
}
