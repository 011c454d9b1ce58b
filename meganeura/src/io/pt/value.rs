//! The values that a pickle describes.

use std::borrow::Cow;

use crate::Result;
use crate::host::reserve;

/// The index of a value in [`Values`]. Values refer to each other by index, as a pickle may describe cycles, and values
/// nested a million deep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place(pub(super) u32);

/// A part of the pickle. Texts stay there, so that a reference to a long text costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Text {
    pub(super) start: u32,
    pub(super) length: u32,
}

/// A value that a pickle describes. Each takes the same small amount of memory, apart from the places of its contents,
/// which the pickle has to name one by one.
#[derive(Debug)]
pub(super) enum Value {
    /// An integer of more than 64 bits, or the result of a harmless call: not a part of any tensor.
    Other,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Text),
    Bytes(Bytes),
    Tuple(Box<[Place]>),
    List(Vec<Place>),
    Dict(Vec<(Place, Place)>),
    /// A Python import.
    Global(Global),
    Storage(Storage),
    View(Box<View>),
    /// A tensor that PyTorch would rebuild with this function, which is not supported.
    Unsupported(Global),
    Object(Box<Object>),
}

/// Bytes in the pickle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Bytes {
    pub(super) text: Text,
    /// They are written as a text whose characters are the bytes, as in protocol 2.
    is_latin: bool,
}

impl Bytes {
    pub(super) fn plain(text: Text) -> Self {
        Self { text, is_latin: false }
    }

    pub(super) fn latin(text: Text) -> Self {
        Self { text, is_latin: true }
    }

    /// The bytes themselves.
    pub(super) fn decode<'a>(self, values: &Values<'a>) -> Result<Cow<'a, [u8]>> {
        let raw = values.text(self.text);
        if !self.is_latin {
            return Ok(Cow::Borrowed(raw));
        }
        let mut bytes = Vec::new();
        reserve(&mut bytes, raw.len())?;
        for character in std::str::from_utf8(raw).unwrap_or_default().chars() {
            bytes.push(u8::try_from(u32::from(character)).unwrap_or(b'?'));
        }
        Ok(Cow::Owned(bytes))
    }
}

/// The result of a call that is not known, such as an instance of a class. Nothing is called: these are the values from
/// which it would be made.
#[derive(Debug)]
pub(super) struct Object {
    /// The class or function, unless it is the result of a call itself.
    pub(super) class: Option<Global>,
    pub(super) arguments: Place,
    pub(super) items: Vec<Place>,
    pub(super) pairs: Vec<(Place, Place)>,
    /// The attributes, as a rule.
    pub(super) state: Option<Place>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Global {
    pub(super) module: Text,
    pub(super) name: Text,
}

/// The memory of tensors: an entry of the archive, or a part of the file behind the pickle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    /// `FloatStorage` and the like.
    pub(super) class: Global,
    pub(super) key: Text,
    /// The first element, for a storage that is a part of another one, as in files before PyTorch 0.4.
    pub(super) offset: i64,
}

/// A view of a storage, as the arguments of the call that rebuilds it. They are checked when the tensor is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) storage: Storage,
    pub(super) offset: i64,
    pub(super) shape: Place,
    pub(super) strides: Place,
    /// The element type, if the storage has none.
    pub(super) dtype: Option<Place>,
    /// Flags such as `neg`.
    pub(super) metadata: Option<Place>,
}

/// The values of a pickle.
pub(super) struct Values<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) all: Vec<Value>,
    pub(super) root: Place,
    /// The length of the pickle.
    pub(super) end: usize,
}

impl<'a> Values<'a> {
    pub(super) fn get(&self, place: Place) -> &Value {
        &self.all[place.0 as usize]
    }

    pub(super) fn text(&self, text: Text) -> &'a [u8] {
        text.of(self.bytes)
    }

    /// The value of a key that is a text, in a dictionary.
    pub(super) fn entry(&self, pairs: &[(Place, Place)], key: &str) -> Option<&Value> {
        let is_key = |place| matches!(*self.get(place), Value::Text(text) if self.text(text) == key.as_bytes());
        // Of equal keys, Python keeps the last value.
        pairs.iter().rev().find(|&&(place, _)| is_key(place)).map(|&(_, value)| self.get(value))
    }

    /// `true` if this is the import of a name from one of these modules.
    pub(super) fn is(&self, global: Global, modules: &[&[u8]], name: &[u8]) -> bool {
        self.text(global.name) == name && modules.contains(&self.text(global.module))
    }
}

impl Text {
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..self.length as usize]
    }

    pub(super) fn len(self) -> usize {
        self.length as usize
    }
}
