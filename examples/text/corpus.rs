//! A text as numbers: one for each character or token, in windows to learn from.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use meganeura::Result;
use meganeura::data::{Array, Dataset, Examples};

use super::tokens::Tokens;

/// "As You Like It": see `examples/data/README.md`.
const PLAY: &str = include_str!("../data/as-you-like-it.txt");

/// The share of a text for training; the rest, at its end, is the unseen text for testing.
const LEARNED: f64 = 0.9;

/// The built-in play.
pub fn embedded() -> String {
    PLAY.to_owned()
}

/// A text of UTF-8 in a file.
pub fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

/// A text and its vocabulary.
pub struct Corpus {
    vocabulary: Vocabulary,
    codes: Arc<[u32]>,
    /// The number of codes for training.
    learned: usize,
    /// The number of characters in the unseen text.
    unseen_characters: usize,
}

/// The meaning of the numbers.
pub enum Vocabulary {
    /// Each character once, sorted; its position is its number.
    Characters(Vec<char>),
    Tokens(Tokens),
}

/// Windows of a text, and the same windows shifted by one place.
pub type Windows = Dataset<Array<u32>, Array<u32>>;

impl Corpus {
    /// A text by characters, or by tokens that are learned from the part for training.
    pub fn new(text: &str, tokens: Option<usize>) -> Result<Self, Box<dyn Error>> {
        // Windows ends lines with two characters.
        let text = text.replace("\r\n", "\n");
        let count = text.chars().count();
        let learned = (count as f64 * LEARNED) as usize;
        let (seen, unseen) = text.split_at(text.char_indices().nth(learned).map_or(text.len(), |(byte, _)| byte));
        let vocabulary = match tokens {
            Some(count) => Vocabulary::Tokens(Tokens::learn(seen, count)?),
            None => {
                let mut characters: Vec<_> = text.chars().collect();
                characters.sort_unstable();
                characters.dedup();
                Vocabulary::Characters(characters)
            }
        };
        let mut codes = vocabulary.encode(seen)?;
        let learned = codes.len();
        codes.extend(vocabulary.encode(unseen)?);
        Ok(Self { vocabulary, codes: codes.into(), learned, unseen_characters: unseen.chars().count() })
    }

    /// The number of characters or tokens in the text.
    pub fn len(&self) -> usize {
        self.codes.len()
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Characters of each code, on average over the unseen text.
    pub fn characters_per_code(&self) -> f64 {
        self.unseen_characters as f64 / (self.codes.len() - self.learned) as f64
    }

    /// A hash of the text.
    pub fn digest(&self) -> u64 {
        let characters = match &self.vocabulary {
            Vocabulary::Characters(characters) => &characters[..],
            Vocabulary::Tokens(_) => &[],
        };
        let numbers = characters.iter().map(|&c| u64::from(u32::from(c)));
        let numbers = numbers.chain(self.codes.iter().map(|&code| u64::from(code)));
        numbers.fold(0, |digest: u64, number| digest.wrapping_mul(0x0100_0000_01b3).wrapping_add(number))
    }

    /// Two sets of windows of `context` codes. Training windows begin a quarter of a window apart; test windows do not
    /// overlap.
    pub fn windows(&self, context: usize) -> Result<(Windows, Windows)> {
        let window = |begin, end, stride| Window { codes: self.codes.clone(), begin, end, context, stride };
        let train = Dataset::of(window(0, self.learned, (context / 4).max(1)))?;
        Ok((train, Dataset::of(window(self.learned, self.len(), context))?))
    }
}

impl Vocabulary {
    /// The number of different codes.
    pub fn count(&self) -> usize {
        match self {
            Self::Characters(characters) => characters.len(),
            Self::Tokens(tokens) => tokens.count(),
        }
    }

    /// The name of what has a code.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Characters(_) => "characters",
            Self::Tokens(_) => "tokens",
        }
    }

    /// The codes of a text; an error if it has a character that is not in the corpus.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Box<dyn Error>> {
        let place = |characters: &[char], c| match characters.binary_search(&c) {
            Ok(place) => Ok(place as u32),
            Err(_) => Err(format!("{c:?} is not in the text").into()),
        };
        match self {
            Self::Characters(characters) => text.chars().map(|c| place(characters, c)).collect(),
            Self::Tokens(tokens) => tokens.encode(text),
        }
    }

    pub fn decode(&self, codes: &[u32]) -> Result<String, Box<dyn Error>> {
        match self {
            Self::Characters(characters) => Ok(codes.iter().map(|&code| characters[code as usize]).collect()),
            Self::Tokens(tokens) => tokens.decode(codes),
        }
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
        // The code after a window is the last target.
        (self.end - self.begin).checked_sub(self.context + 1).map_or(0, |rest| rest / self.stride + 1)
    }

    fn read(&self, index: usize) -> Result<(Array<u32>, Array<u32>)> {
        let first = self.begin + index * self.stride;
        let window = |first| Array::new(self.codes[first..first + self.context].to_vec(), [self.context]);
        Ok((window(first)?, window(first + 1)?))
    }
}
