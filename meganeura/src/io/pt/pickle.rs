//! The part of Python's pickle format that describes tensors. Nothing is run: the calls of a pickle are compared with a
//! list of names, and any other is an error that names it.

use std::collections::HashMap;

use super::opcode;
use super::work::Work;
use crate::Result;
use crate::error::{bail, shortened};

/// The index of a value in [`Values`]. Values refer to each other by index, as a pickle may describe cycles, and values
/// nested a million deep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place(u32);

/// A part of the pickle. Texts stay there, so that a reference to a long text costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Text {
    start: u32,
    length: u32,
}

/// A value that a pickle describes. Each takes the same small amount of memory, apart from the places of its contents,
/// which the pickle has to name one by one.
#[derive(Debug)]
pub(super) enum Value {
    /// Bytes, an integer of more than 64 bits, or the result of a harmless call: not a part of any tensor.
    Other,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Text),
    Tuple(Box<[Place]>),
    List(Vec<Place>),
    Dict(Vec<(Place, Place)>),
    /// A Python import.
    Global(Global),
    Storage(Storage),
    View(Box<View>),
    /// A tensor that PyTorch would rebuild with this function, which is not supported.
    Unsupported(Global),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Global {
    pub(super) module: Text,
    pub(super) name: Text,
}

/// The memory of tensors: an entry of the archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    /// `FloatStorage` and the like.
    pub(super) class: Global,
    pub(super) key: Text,
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
    bytes: &'a [u8],
    all: Vec<Value>,
    pub(super) root: Place,
}

impl<'a> Values<'a> {
    pub(super) fn get(&self, place: Place) -> &Value {
        &self.all[place.0 as usize]
    }

    pub(super) fn text(&self, text: Text) -> &'a [u8] {
        text.of(self.bytes)
    }
}

impl Text {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..self.length as usize]
    }

    pub(super) fn len(self) -> usize {
        self.length as usize
    }
}

/// Reads a pickle made of the instructions that `torch.save` writes: those of protocol 2, and their equivalents in
/// later ones.
pub(super) fn read<'a>(bytes: &'a [u8], work: &mut Work) -> Result<Values<'a>> {
    if u32::try_from(bytes.len()).is_err() {
        bail!(Checkpoint, "a pickle of {} bytes", bytes.len());
    }
    let all = vec![Value::None, Value::Bool(false), Value::Bool(true), Value::Tuple(Box::default())];
    let mut machine =
        Machine { bytes, at: 0, all, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), steps: 0 };
    let root = machine.run();
    work.count(machine.steps);
    Ok(Values { bytes, root: root?, all: machine.all })
}

/// The places of values without contents. There is one of each.
const NONE: Place = Place(0);
const FALSE: Place = Place(1);
const TRUE: Place = Place(2);
const EMPTY_TUPLE: Place = Place(3);

/// The stack machine that runs a pickle's instructions. An instruction takes time and memory for the bytes that it has,
/// and for the values that it takes from the stack, never for the contents of values that it refers to.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    all: Vec<Value>,
    stack: Vec<Place>,
    /// The heights of the stack at marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Place>,
    /// The instructions so far, and the values that they took.
    steps: usize,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Place> {
        loop {
            let start = self.at;
            self.steps += 1;
            match self.byte()? {
                opcode::PROTO => drop(self.take(1)?),
                opcode::FRAME => drop(self.take(8)?),
                opcode::STOP => return self.pop(),
                opcode::MARK => self.marks.push(self.stack.len()),
                opcode::POP => drop(self.pop()?),
                opcode::POP_MARK => drop(self.marked()?),
                opcode::NONE => self.stack.push(NONE),
                opcode::NEWTRUE => self.stack.push(TRUE),
                opcode::NEWFALSE => self.stack.push(FALSE),
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
                    let number = f64::from_be_bytes(self.array()?);
                    self.push(Value::Float(number));
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
                opcode::EMPTY_TUPLE => self.stack.push(EMPTY_TUPLE),
                opcode::TUPLE1 => self.tuple_of(1)?,
                opcode::TUPLE2 => self.tuple_of(2)?,
                opcode::TUPLE3 => self.tuple_of(3)?,
                opcode::TUPLE => {
                    let items = self.marked()?;
                    self.push(Value::Tuple(items.into()));
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
                    self.push(Value::Global(Global { module, name }));
                }
                opcode::STACK_GLOBAL => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (&Value::Text(module), &Value::Text(name)) = (self.get(module), self.get(name)) else {
                        bail!(Checkpoint, "byte {start} of the pickle: a class without a name");
                    };
                    self.push(Value::Global(Global { module, name }));
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

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
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

    /// The next `length` bytes as a text.
    fn text_of(&mut self, length: usize) -> Result<Text> {
        let start = self.at;
        let length = self.take(length)?.len();
        #[expect(clippy::cast_possible_truncation, reason = "a pickle has less than 2³² bytes")]
        Ok(Text { start: start as u32, length: length as u32 })
    }

    fn line(&mut self) -> Result<Text> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let line = self.text_of(length)?;
        self.take(1)?;
        Ok(line)
    }

    fn get(&self, place: Place) -> &Value {
        &self.all[place.0 as usize]
    }

    fn push(&mut self, value: Value) {
        // One for each byte of the pickle, at most.
        #[expect(clippy::cast_possible_truncation, reason = "a pickle has less than 2³² bytes")]
        self.stack.push(Place(self.all.len() as u32));
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
        let items = self.stack.split_off(mark);
        self.steps += items.len();
        Ok(items)
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
        let text = self.text_of(length)?;
        self.push(Value::Text(text));
        Ok(())
    }

    fn tuple_of(&mut self, count: usize) -> Result<()> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push(Value::Tuple(items.into()));
        Ok(())
    }

    fn append(&mut self, items: Vec<Place>) -> Result<()> {
        match self.stack.last().map(|list| &mut self.all[list.0 as usize]) {
            Some(Value::List(list)) => list.extend(items),
            _ => bail!(Checkpoint, "the pickle adds to a list that is none"),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Place]) -> Result<()> {
        match self.stack.last().map(|dict| &mut self.all[dict.0 as usize]) {
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

    /// The name of an import, for comparisons.
    fn name(&self, global: Global) -> (&'a [u8], &'a [u8]) {
        (global.module.of(self.bytes), global.name.of(self.bytes))
    }

    /// A reference to data outside of the pickle: `('storage', class, key, device, elements)`.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let Value::Tuple(parts) = self.get(id) else { bail!(Checkpoint, "the pickle refers to something unknown") };
        let &[kind, class, key, ..] = &parts[..] else {
            bail!(Checkpoint, "the pickle refers to something that is not a storage");
        };
        let (&Value::Text(kind), &Value::Global(class), &Value::Text(key)) =
            (self.get(kind), self.get(class), self.get(key))
        else {
            bail!(Checkpoint, "the pickle refers to something that is not a storage");
        };
        let (module, name) = self.name(class);
        let is_class = matches!(module, b"torch" | b"torch.storage") && name.ends_with(b"Storage");
        let kind = kind.of(self.bytes);
        if kind != b"storage" || !is_class {
            let kind = String::from_utf8_lossy(&kind[..kind.len().min(1 << 10)]).into_owned();
            bail!(Checkpoint, "the pickle refers to `{}`, which is not a storage", shortened(&kind));
        }
        self.push(Value::Storage(Storage { class, key }));
        Ok(())
    }

    /// A call. The results of a few known ones are described; all others are refused. Arguments are referred to, not
    /// copied: many calls may share them.
    fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (&Value::Global(global), Value::Tuple(places)) = (self.get(function), self.get(arguments)) else {
            bail!(Checkpoint, "the pickle calls something that has no name");
        };
        let argument = |at: usize| places.get(at).map(|&place| self.get(place));
        let (module, name) = self.name(global);
        let result = match (module, name) {
            (b"collections", b"OrderedDict") if places.is_empty() => Value::Dict(Vec::new()),
            (b"torch._utils", b"_rebuild_parameter" | b"_rebuild_parameter_with_state") if !places.is_empty() => {
                let tensor = places[0];
                self.stack.push(tensor);
                return Ok(());
            }
            (b"torch", b"Size") if matches!(argument(0), Some(Value::Tuple(_))) && places.len() == 1 => {
                let size = places[0];
                self.stack.push(size);
                return Ok(());
            }
            // Parts of tensors that are not supported.
            (b"torch", b"device") | (b"torch.serialization", b"_get_layout") => Value::Other,
            (b"torch._utils", b"_rebuild_tensor" | b"_rebuild_tensor_v2" | b"_rebuild_tensor_v3") => {
                let (Some(&Value::Storage(storage)), Some(&Value::Int(offset)), true) =
                    (argument(0), argument(1), places.len() >= 4)
                else {
                    let name = String::from_utf8_lossy(name);
                    bail!(Checkpoint, "the pickle describes a tensor with invalid arguments of `{name}`");
                };
                let (dtype, metadata) = match name {
                    b"_rebuild_tensor_v3" => (places.get(6), places.get(7)),
                    _ => (None, places.get(6)),
                };
                let (shape, strides) = (places[2], places[3]);
                let (dtype, metadata) = (dtype.copied(), metadata.copied());
                Value::View(Box::new(View { storage, offset, shape, strides, dtype, metadata }))
            }
            (b"torch._utils", name) if name.starts_with(b"_rebuild_") => Value::Unsupported(global),
            _ => {
                let shown = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(1 << 10)]).into_owned();
                let name = format!("{}.{}", shown(module), shown(name));
                bail!(
                    Checkpoint,
                    "the pickle would call `{}`, and only tensors in dictionaries, lists and tuples are read; nothing of the file was \
                     run. Save the `state_dict()` of a model",
                    shortened(&name)
                )
            }
        };
        self.push(result);
        Ok(())
    }
}
