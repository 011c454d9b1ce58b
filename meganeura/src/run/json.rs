//! JSON objects whose errors name the file and the field, and files of one object with its own checksum.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::checksum::{Checksum, is_of};
use crate::error::bail;
use crate::{Error, ErrorKind, Result};

/// The format of all files that this version writes. In format 2, checksums are others.
pub(super) const FORMAT: u64 = 3;

/// The formats that this version reads.
const READ: RangeInclusive<u64> = 2..=FORMAT;

/// The version of the framework.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The start of a sealed file, up to the digits of its checksum.
const SEAL: &str = "{\n  \"checksum\": \"";

/// A file with this object, whose first line is the checksum of the lines that follow.
pub(super) fn sealed(object: &Value) -> Vec<u8> {
    sealed_by(object, |rest| Checksum::of(rest).digits())
}

pub(super) fn sealed_by(object: &Value, digits: impl Fn(&[u8]) -> String) -> Vec<u8> {
    let text = format!("{object:#}\n");
    let rest = text.strip_prefix("{\n").expect("an object with fields");
    let rest = format!("\",\n{rest}");
    format!("{SEAL}{}{rest}", digits(rest.as_bytes())).into_bytes()
}

/// A sealed file after a change by the user, sealed again; `None` if it is not an object with fields.
#[cfg(any(test, feature = "testing"))]
pub fn resealed(text: &[u8]) -> Option<Vec<u8>> {
    let mut object: Map<String, Value> = serde_json::from_slice(text).ok()?;
    object.remove("checksum");
    (!object.is_empty()).then(|| sealed(&object.into()))
}

/// The state of a file's checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seal {
    Whole,
    Broken,
    /// The file does not start with a checksum.
    Missing,
}

impl Seal {
    pub(super) fn of(text: &[u8]) -> Self {
        let Some(text) = text.strip_prefix(SEAL.as_bytes()) else { return Self::Missing };
        let end = text.iter().position(|&byte| byte == b'"').unwrap_or(text.len());
        let (digits, rest) = text.split_at(end);
        if str::from_utf8(digits).is_ok_and(|digits| is_of(rest, digits)) { Self::Whole } else { Self::Broken }
    }
}

/// An object, and its name in messages.
#[derive(Debug)]
pub(super) struct Object {
    what: String,
    fields: Map<String, Value>,
}

impl Object {
    pub(super) fn parse(what: impl Into<String>, text: &[u8]) -> Result<Self> {
        let what = what.into();
        match serde_json::from_slice(text) {
            Ok(fields) => Ok(Self { what, fields }),
            Err(error) => {
                Err(Error::new(ErrorKind::Checkpoint, format!("{what} is damaged: {error}")).caused_by(error))
            }
        }
    }

    /// The object of a file that is [`sealed`].
    pub(super) fn parse_sealed(what: impl Into<String>, text: &[u8]) -> Result<Self> {
        let what = what.into();
        match Seal::of(text) {
            Seal::Whole => {}
            Seal::Broken => bail!(Checkpoint, "{what} is damaged: it has other bytes than were written"),
            Seal::Missing => {
                // Files of other versions may have none.
                Self::parse(what.clone(), text)?.expect_format()?;
                bail!(Checkpoint, "{what} is damaged: it does not begin with its checksum");
            }
        }
        let object = Self::parse(what, text)?;
        object.expect_format()?;
        Ok(object)
    }

    /// Fails unless the object has a format that this version reads.
    pub(super) fn expect_format(&self) -> Result<()> {
        let format = self.whole("format")?;
        if !READ.contains(&format) {
            let (first, last) = (READ.start(), READ.end());
            let writer = self.text("meganeura").unwrap_or("an unknown version");
            bail!(
                Checkpoint,
                "{} is of format {format}, by meganeura {writer}; this is meganeura {VERSION}, which reads formats \
                 {first} to {last}",
                self.what
            );
        }
        Ok(())
    }

    fn get<'a, T>(&'a self, name: &str, kind: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        match self.fields.get(name) {
            None => bail!(Checkpoint, "{} is damaged: `{name}` is missing", self.what),
            Some(value) => read(value).ok_or_else(|| {
                Error::new(ErrorKind::Checkpoint, format!("{} is damaged: `{name}` is not {kind}: {value}", self.what))
            }),
        }
    }

    pub(super) fn whole(&self, name: &str) -> Result<u64> {
        self.get(name, "a whole number", Value::as_u64)
    }

    pub(super) fn number(&self, name: &str) -> Result<f64> {
        self.get(name, "a number", read_number)
    }

    pub(super) fn text(&self, name: &str) -> Result<&str> {
        self.get(name, "a text", Value::as_str)
    }

    pub(super) fn truth(&self, name: &str) -> Result<bool> {
        self.get(name, "a truth value", Value::as_bool)
    }

    pub(super) fn object(&self, name: &str) -> Result<Self> {
        let fields = self.get(name, "an object", Value::as_object)?.clone();
        Ok(Self { what: format!("{}, `{name}`,", self.what), fields })
    }

    /// The fields of the object at `name`, all of them texts.
    pub(super) fn texts(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let object = self.object(name)?;
        object.fields.keys().map(|key| Ok((key.clone(), object.text(key)?.to_owned()))).collect()
    }

    /// The fields of the object at `name`, all of them numbers.
    pub(super) fn numbers(&self, name: &str) -> Result<BTreeMap<String, f64>> {
        self.object(name)?.numbers_except(&[])
    }

    /// All fields but these, all of them numbers.
    pub(super) fn numbers_except(&self, other: &[&str]) -> Result<BTreeMap<String, f64>> {
        let names = self.fields.keys().filter(|name| !other.contains(&name.as_str()));
        names.map(|name| Ok((name.clone(), self.number(name)?))).collect()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }
}

/// A number. Values without a JSON number are text, so that a loss of NaN differs from an infinite one, and from none.
pub(super) fn number(number: f64) -> Value {
    if number.is_finite() { number.into() } else { number.to_string().into() }
}

fn read_number(value: &Value) -> Option<f64> {
    let special = |text: &str| matches!(text, "NaN" | "inf" | "-inf").then(|| text.parse().ok()).flatten();
    value.as_f64().or_else(|| special(value.as_str()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_number_comes_back() {
        for expected in [0.1, -0.0, 1e-310, f64::MAX, 1.0 / 3.0, 5e-324, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let text = number(expected).to_string();
            let found = read_number(&serde_json::from_str(&text).unwrap()).unwrap();
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{text}");
        }
        assert!(read_number(&Value::from("12")).is_none(), "text is not a number");
    }

    #[test]
    fn errors_name_file_and_field() {
        let read = |text: &str| Object::parse("f.json", text.as_bytes());
        let message = |error: Error| {
            assert_eq!(error.kind(), ErrorKind::Checkpoint);
            error.to_string()
        };
        assert!(message(read("{\"a\":").unwrap_err()).contains("f.json is damaged: EOF"));
        assert!(message(read("[1]").unwrap_err()).contains("f.json is damaged"));
        let object = read("{\"a\": -1, \"b\": {\"c\": true}, \"format\": 4, \"meganeura\": \"9.0\"}").unwrap();
        assert_eq!(message(object.whole("a").unwrap_err()), "f.json is damaged: `a` is not a whole number: -1");
        assert_eq!(message(object.text("x").unwrap_err()), "f.json is damaged: `x` is missing");
        assert_eq!(message(object.numbers("b").unwrap_err()), "f.json, `b`, is damaged: `c` is not a number: true");
        let expected =
            format!("f.json is of format 4, by meganeura 9.0; this is meganeura {VERSION}, which reads formats 2 to 3");
        assert_eq!(message(object.expect_format().unwrap_err()), expected);
        // Format 1 had no checksums.
        let error = Object::parse_sealed("f.json", b"{\"format\": 1, \"meganeura\": \"0.1.0\"}").unwrap_err();
        assert!(message(error).starts_with("f.json is of format 1, by meganeura 0.1.0; this is"));
    }

    #[test]
    fn a_seal_breaks_with_any_bit() {
        let file = sealed(&json!({ "format": FORMAT, "a": "text", "z": { "n": 0.1 } }));
        assert_eq!(Object::parse_sealed("f.json", &file).unwrap().text("a").unwrap(), "text");
        assert_eq!(serde_json::from_slice::<Value>(&file).unwrap()["z"]["n"], 0.1, "it is JSON");
        for bit in 0..file.len() * 8 {
            let mut other = file.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Object::parse_sealed("f.json", &other).unwrap_err().kind(), ErrorKind::Checkpoint, "bit {bit}");
            let expected = if bit / 8 < SEAL.len() { Seal::Missing } else { Seal::Broken };
            assert_eq!(Seal::of(&other), expected);
        }
        for length in 0..file.len() {
            assert!(Object::parse_sealed("f.json", &file[..length]).is_err(), "{length} bytes");
        }
    }
}
