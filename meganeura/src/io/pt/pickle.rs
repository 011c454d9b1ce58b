//! The part of Python's pickle format that describes tensors. Nothing is run: the calls of a pickle are compared with a
//! list of names, and any other is an error that names it.

use std::collections::HashMap;
use std::sync::Arc;

use super::opcode;
use crate::Result;
use crate::error::{bail, shortened};

/// The index of a value in [`Values`]. Values refer to each other by index, as a pickle may describe cycles, and values
/// nested a million deep.
pub(super) type Place = usize;

/// A value that a pickle describes.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    /// `None`, a float, bytes: not a part of any tensor.
    Other,
    Bool(bool),
    Int(i64),
    /// A text of at most [`LONGEST`] bytes.
    Text(Arc<str>),
    Tuple(Vec<Place>),
    List(Vec<Place>),
    Dict(Vec<(Place, Place)>),
    /// A Python import, as `module.name`.
    Global(String),
    Storage(Storage),
    Tensor(Arc<Tensor>),
}

/// The memory of tensors: numbers of one type in an entry of the archive.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Storage {
    /// `FloatStorage` and the like.
    pub(super) class: Arc<str>,
    pub(super) key: Arc<str>,
}

/// A view of a storage, counted in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tensor {
    pub(super) storage: Storage,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// The maximum size of a text that is kept. Keys and names are shorter.
const LONGEST: usize = 1 << 12;

/// The maximum number of axes of a tensor.
const MOST_AXES: usize = 64;

/// The suffix of storage classes; PyTorch has one for each element type.
const STORAGE: &str = "Storage";

/// The values of a pickle.
pub(super) struct Values {
    all: Vec<Value>,
    pub(super) root: Place,
}

impl Values {
    pub(super) fn get(&self, place: Place) -> &Value {
        &self.all[place]
    }
}

/// Reads a pickle made of the instructions that `torch.save` writes: those of protocol 2, and their equivalents in
/// later ones.
pub(super) fn read(bytes: &[u8]) -> Result<Values> {
    let mut machine =
        Machine { bytes, at: 0, all: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
    let root = machine.run()?;
    Ok(Values { all: machine.all, root })
}

/// The stack machine that runs a pickle's instructions.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    all: Vec<Value>,
    stack: Vec<Place>,
    /// The heights of the stack at marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Place>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Place> {
        loop {
            let start = self.at;
            match self.byte()? {
                opcode::PROTO => drop(self.take(1)?),
                opcode::FRAME => drop(self.take(8)?),
                opcode::STOP => return self.pop(),
                opcode::MARK => self.marks.push(self.stack.len()),
                opcode::POP => drop(self.pop()?),
                opcode::POP_MARK => drop(self.marked()?),
                opcode::NONE => self.push(Value::Other),
                opcode::NEWTRUE => self.push(Value::Bool(true)),
                opcode::NEWFALSE => self.push(Value::Bool(false)),
                opcode::BININT1 => {
                    let number = self.byte()?;
                    self.push(Value::Int(number.into()));
                }
                opcode::BININT2 => {
                    let number = u16::from_le_bytes(self.array()?);
                    self.push(Value::Int(number.into()));
                }
                opcode::BININT => {
                    let number = i32::from_le_bytes(self.array()?);
                    self.push(Value::Int(number.into()));
                }
                opcode::LONG1 => self.long()?,
                opcode::BINFLOAT => {
                    self.take(8)?;
                    self.push(Value::Other);
                }
                opcode::SHORT_BINUNICODE => {
                    let length = self.byte()?.into();
                    self.text(length)?;
                }
                opcode::BINUNICODE => {
                    let length = self.length()?;
                    self.text(length)?;
                }
                opcode::SHORT_BINBYTES => {
                    let length = self.byte()?.into();
                    self.take(length)?;
                    self.push(Value::Other);
                }
                opcode::BINBYTES => {
                    let length = self.length()?;
                    self.take(length)?;
                    self.push(Value::Other);
                }
                opcode::EMPTY_TUPLE => self.push(Value::Tuple(Vec::new())),
                opcode::TUPLE1 => self.tuple_of(1)?,
                opcode::TUPLE2 => self.tuple_of(2)?,
                opcode::TUPLE3 => self.tuple_of(3)?,
                opcode::TUPLE => {
                    let items = self.marked()?;
                    self.push(Value::Tuple(items));
                }
                opcode::EMPTY_LIST => self.push(Value::List(Vec::new())),
                opcode::LIST => {
                    let items = self.marked()?;
                    self.push(Value::List(items));
                }
                opcode::APPEND => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                opcode::APPENDS => {
                    let items = self.marked()?;
                    self.append(items)?;
                }
                opcode::EMPTY_DICT => self.push(Value::Dict(Vec::new())),
                opcode::DICT => {
                    let items = self.marked()?;
                    self.push(Value::Dict(Vec::new()));
                    self.set(&items)?;
                }
                opcode::SETITEM => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set(&[key, value])?;
                }
                opcode::SETITEMS => {
                    let items = self.marked()?;
                    self.set(&items)?;
                }
                opcode::BINPUT => {
                    let number = self.byte()?.into();
                    self.remember(number)?;
                }
                opcode::LONG_BINPUT => {
                    let number = u32::from_le_bytes(self.array()?);
                    self.remember(number)?;
                }
                opcode::MEMOIZE => {
                    let number = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
                    self.remember(number)?;
                }
                opcode::BINGET => {
                    let number = self.byte()?.into();
                    self.recall(number)?;
                }
                opcode::LONG_BINGET => {
                    let number = u32::from_le_bytes(self.array()?);
                    self.recall(number)?;
                }
                opcode::GLOBAL => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.push(Value::Global(format!("{module}.{name}")));
                }
                opcode::STACK_GLOBAL => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Value::Text(module), Value::Text(name)) = (&self.all[module], &self.all[name]) else {
                        bail!(Checkpoint, "byte {start} of the pickle: a class without a name");
                    };
                    let global = Value::Global(format!("{module}.{name}"));
                    self.push(global);
                }
                opcode::BINPERSID => self.storage()?,
                opcode::REDUCE | opcode::NEWOBJ => self.call()?,
                // Sets attributes besides the contents, such as the versions of a state_dict's layers.
                opcode::BUILD => drop(self.pop()?),
                other => {
                    bail!(Checkpoint, "byte {start} of the pickle: instruction {other:#04x}, which no tensor needs")
                }
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else { bail!(Checkpoint, "the pickle ends in the middle of an instruction") };
        Ok(&self.bytes[std::mem::replace(&mut self.at, end)..end])
    }

    fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many as were asked for"))
    }

    fn length(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn line(&mut self) -> Result<String> {
        let length = self.bytes[self.at..].iter().position(|&byte| byte == b'\n').unwrap_or(usize::MAX - 1);
        let line = self.take(length.saturating_add(1))?;
        Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.all.len());
        self.all.push(value);
    }

    fn pop(&mut self) -> Result<Place> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            bail!(Checkpoint, "the pickle takes a value where there is none");
        }
        Ok(self.stack.pop().expect("there is one"))
    }

    /// The values above the last mark.
    fn marked(&mut self) -> Result<Vec<Place>> {
        let Some(mark) = self.marks.pop() else { bail!(Checkpoint, "the pickle takes values where none begin") };
        Ok(self.stack.split_off(mark))
    }

    /// An integer of any length, if it fits into 64 bits.
    fn long(&mut self) -> Result<()> {
        let length = self.byte()?.into();
        let bytes = self.take(length)?;
        let value = if bytes.len() <= 8 {
            let sign = bytes.last().map_or(0, |last| if last >> 7 == 1 { 0xff } else { 0 });
            let mut number = [sign; 8];
            number[..bytes.len()].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(number))
        } else {
            Value::Other
        };
        self.push(value);
        Ok(())
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let text = self.take(length)?;
        let value = if length > LONGEST { Value::Other } else { Value::Text(String::from_utf8_lossy(text).into()) };
        self.push(value);
        Ok(())
    }

    fn tuple_of(&mut self, count: usize) -> Result<()> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push(Value::Tuple(items));
        Ok(())
    }

    fn append(&mut self, items: Vec<Place>) -> Result<()> {
        match self.stack.last().map(|&list| &mut self.all[list]) {
            Some(Value::List(list)) => list.extend(items),
            _ => bail!(Checkpoint, "the pickle adds to a list that is none"),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Place]) -> Result<()> {
        match self.stack.last().map(|&dict| &mut self.all[dict]) {
            Some(Value::Dict(dict)) if items.len().is_multiple_of(2) => {
                dict.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => bail!(Checkpoint, "the pickle sets keys of a dictionary that is none"),
        }
        Ok(())
    }

    fn remember(&mut self, number: u32) -> Result<()> {
        let Some(&top) = self.stack.last() else { bail!(Checkpoint, "the pickle remembers a value that is not there") };
        self.memo.insert(number, top);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<()> {
        let Some(&place) = self.memo.get(&number) else {
            bail!(Checkpoint, "the pickle recalls value {number}, which it never remembered");
        };
        self.stack.push(place);
        Ok(())
    }

    /// A reference to data outside of the pickle: `('storage', class, key, device, elements)`.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let Value::Tuple(parts) = &self.all[id] else { bail!(Checkpoint, "the pickle refers to something unknown") };
        let parts: Vec<_> = parts.iter().map(|&part| &self.all[part]).collect();
        let [Value::Text(kind), Value::Global(class), Value::Text(key), ..] = &parts[..] else {
            bail!(Checkpoint, "the pickle refers to something that is not a storage");
        };
        let class = class.strip_prefix("torch.").filter(|class| class.ends_with(STORAGE));
        let Some(class) = class.filter(|_| **kind == *"storage") else {
            bail!(Checkpoint, "the pickle refers to `{}`, which is not a storage", shortened(kind));
        };
        let storage = Storage { class: class.into(), key: Arc::clone(key) };
        self.push(Value::Storage(storage));
        Ok(())
    }

    /// A call. The results of a few known ones are described; all others are refused.
    fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Global(name), Value::Tuple(places)) = (&self.all[function], &self.all[arguments]) else {
            bail!(Checkpoint, "the pickle calls something that has no name");
        };
        let arguments: Vec<_> = places.iter().map(|&place| &self.all[place]).collect();
        let result = match (&name[..], &arguments[..]) {
            ("collections.OrderedDict", []) => Value::Dict(Vec::new()),
            ("torch._utils._rebuild_parameter", [_, ..]) => {
                let tensor = places[0];
                self.stack.push(tensor);
                return Ok(());
            }
            ("torch.Size", [Value::Tuple(items)]) if items.len() <= MOST_AXES => Value::Tuple(items.clone()),
            (
                "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor",
                [Value::Storage(storage), Value::Int(offset), Value::Tuple(shape), Value::Tuple(strides), ..],
            ) => {
                let number = |place: &Place| match self.all[*place] {
                    Value::Int(number) => usize::try_from(number).ok(),
                    _ => None,
                };
                if shape.len() > MOST_AXES {
                    bail!(Checkpoint, "a tensor of {} axes, {MOST_AXES} are the most", shape.len());
                }
                let (shape, strides): (Option<Vec<_>>, Option<Vec<_>>) =
                    (shape.iter().map(number).collect(), strides.iter().map(number).collect());
                match (usize::try_from(*offset), shape, strides) {
                    (Ok(offset), Some(shape), Some(strides))
                        if shape.len() == strides.len() && shape.len() <= MOST_AXES =>
                    {
                        Value::Tensor(Arc::new(Tensor { storage: storage.clone(), offset, shape, strides }))
                    }
                    _ => bail!(Checkpoint, "the pickle describes a tensor with invalid extents"),
                }
            }
            _ => bail!(
                Checkpoint,
                "the pickle would call `{}`, and only tensors in dictionaries, lists and tuples are read; nothing of the file was run. \
                 Save the `state_dict()` of a model",
                shortened(name)
            ),
        };
        self.push(result);
        Ok(())
    }
}
