//! A text as numbers: one for each character, in windows to learn from.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use meganeura::Result;
use meganeura::data::{Array, Dataset, Examples};

/// "As You Like It": see `examples/data/README.md`.
const PLAY: &str = include_str!("../data/as-you-like-it.txt");

/// The share of a text for training; the rest, at its end, is the unseen text for testing.
const LEARNED: f64 = 0.9;

/// A text and its alphabet.
pub struct Corpus {
    /// Each character once, sorted; its position is its number.
    characters: Vec<char>,
    codes: Arc<[u32]>,
}

/// Windows of a text, and the same windows shifted by one character.
pub type Windows = Dataset<Array<u32>, Array<u32>>;

impl Corpus {
    /// The built-in play.
    pub fn embedded() -> Self {
        Self::new(PLAY)
    }

    /// A text of UTF-8 in a file.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(Self::new(&fs::read_to_string(path)?))
    }

    fn new(text: &str) -> Self {
        // Windows ends lines with two characters.
        let text = text.replace("\r\n", "\n");
        let mut characters: Vec<_> = text.chars().collect();
        characters.sort_unstable();
        characters.dedup();
        let place = |c| characters.binary_search(&c).expect("a character of the text") as u32;
        let codes = text.chars().map(place).collect();
        Self { characters, codes }
    }

    /// The number of characters in the text.
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    /// A hash of the text.
    pub fn digest(&self) -> u64 {
        let characters = self.characters.iter().map(|&c| u64::from(u32::from(c)));
        let numbers = characters.chain(self.codes.iter().map(|&code| u64::from(code)));
        numbers.fold(0, |digest: u64, number| digest.wrapping_mul(0x0100_0000_01b3).wrapping_add(number))
    }

    /// The number of different characters.
    pub fn characters(&self) -> usize {
        self.characters.len()
    }

    /// The numbers of a text's characters, or the first character that is not in the corpus.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, char> {
        text.chars().map(|c| self.characters.binary_search(&c).map(|place| place as u32).map_err(|_| c)).collect()
    }

    pub fn decode(&self, codes: &[u32]) -> String {
        codes.iter().map(|&code| self.characters[code as usize]).collect()
    }

    /// Two sets of windows of `context` characters. Training windows begin a quarter of a window apart; test windows do
    /// not overlap.
    pub fn windows(&self, context: usize) -> Result<(Windows, Windows)> {
        let learned = (self.len() as f64 * LEARNED) as usize;
        let window = |begin, end, stride| Window { codes: self.codes.clone(), begin, end, context, stride };
        let train = Dataset::of(window(0, learned, (context / 4).max(1)))?;
        Ok((train, Dataset::of(window(learned, self.len(), context))?))
    }
}

/// Windows of a part of a text.
struct Window {
    codes: Arc<[u32]>,
    begin: usize,
    end: usize,
    context: usize,
    stride: usize,
}

impl Examples for Window {
    type Inputs = Array<u32>;
    type Targets = Array<u32>;

    fn len(&self) -> usize {
        // The character after a window is the last target.
        (self.end - self.begin).checked_sub(self.context + 1).map_or(0, |rest| rest / self.stride + 1)
    }

    fn read(&self, index: usize) -> Result<(Array<u32>, Array<u32>)> {
        let first = self.begin + index * self.stride;
        let window = |first| Array::new(self.codes[first..first + self.context].to_vec(), [self.context]);
        Ok((window(first)?, window(first + 1)?))
    }
}
