//! Python's pickle format, as far as files with tensors use it. Nothing is run: calls give descriptions of values.

use std::collections::HashMap;

use super::opcode;
use super::value::{Bytes, Global, Place, Text, Value, Values};
use super::work::Work;
use crate::Result;
use crate::error::bail;

/// Reads the pickle at the start of these bytes: the instructions of protocol 2 and later ones, without those that
/// depend on the program that reads.
pub(super) fn read<'a>(bytes: &'a [u8], work: &mut Work) -> Result<Values<'a>> {
    // Places in it have 32 bits. Behind it may be more.
    let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
    let all = vec![Value::None, Value::Bool(false), Value::Bool(true), Value::Tuple(Box::default())];
    let mut machine =
        Machine { bytes, at: 0, all, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), steps: 0 };
    let root = machine.run();
    work.count(machine.steps);
    Ok(Values { bytes, root: root?, end: machine.at, all: machine.all })
}

/// The places of values without contents. There is one of each.
pub(super) const NONE: Place = Place(0);
const FALSE: Place = Place(1);
const TRUE: Place = Place(2);
pub(super) const EMPTY_TUPLE: Place = Place(3);

/// The stack machine that runs a pickle's instructions. An instruction takes time and memory for the bytes that it has,
/// and for the values that it takes from the stack, never for the contents of values that it refers to.
pub(super) struct Machine<'a> {
    pub(super) bytes: &'a [u8],
    at: usize,
    all: Vec<Value>,
    pub(super) stack: Vec<Place>,
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
                opcode::LONG1 => {
                    let length = self.byte()?.into();
                    self.long(length)?;
                }
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
                // The texts of Python 2 are bytes.
                opcode::SHORT_BINSTRING => {
                    let length = self.byte()?.into();
                    self.text(length)?;
                }
                opcode::BINSTRING => {
                    let length = self.length()?;
                    self.text(length)?;
                }
                opcode::BINUNICODE8 => {
                    let length = self.long_length()?;
                    self.text(length)?;
                }
                opcode::SHORT_BINBYTES => {
                    let length = self.byte()?.into();
                    self.blob(length)?;
                }
                opcode::BINBYTES => {
                    let length = self.length()?;
                    self.blob(length)?;
                }
                opcode::BINBYTES8 | opcode::BYTEARRAY8 => {
                    let length = self.long_length()?;
                    self.blob(length)?;
                }
                opcode::INT | opcode::LONG => self.decimal()?,
                opcode::LONG4 => {
                    let length = self.length()?;
                    self.long(length)?;
                }
                opcode::EMPTY_TUPLE => self.stack.push(EMPTY_TUPLE),
                opcode::TUPLE1 => self.tuple_of(1)?,
                opcode::TUPLE2 => self.tuple_of(2)?,
                opcode::TUPLE3 => self.tuple_of(3)?,
                opcode::TUPLE => {
                    let items = self.marked()?;
                    self.push(Value::Tuple(items.into()));
                }
                opcode::EMPTY_LIST | opcode::EMPTY_SET => self.push(Value::List(Vec::new())),
                opcode::LIST | opcode::FROZENSET => {
                    let items = self.marked()?;
                    self.push(Value::List(items));
                }
                opcode::APPEND => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                opcode::APPENDS | opcode::ADDITEMS => {
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
                opcode::NEWOBJ_EX => {
                    // Arguments by name.
                    self.pop()?;
                    self.call()?;
                }
                opcode::BUILD => self.build()?,
                opcode::DUP => {
                    let top = self.pop()?;
                    self.stack.extend([top, top]);
                }
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

    fn long_length(&mut self) -> Result<usize> {
        let length = u64::from_le_bytes(self.array()?);
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
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

    pub(super) fn get(&self, place: Place) -> &Value {
        &self.all[place.0 as usize]
    }

    pub(super) fn push(&mut self, value: Value) {
        // One for each byte of the pickle, at most.
        #[expect(clippy::cast_possible_truncation, reason = "a pickle has less than 2³² bytes")]
        self.stack.push(Place(self.all.len() as u32));
        self.all.push(value);
    }

    pub(super) fn pop(&mut self) -> Result<Place> {
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
    fn long(&mut self, length: usize) -> Result<()> {
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

    fn blob(&mut self, length: usize) -> Result<()> {
        let text = self.text_of(length)?;
        self.push(Value::Bytes(Bytes::plain(text)));
        Ok(())
    }

    /// An integer in decimals, or one of `00` and `01`, the truth values of the first protocols.
    fn decimal(&mut self) -> Result<()> {
        let line = self.line()?.of(self.bytes);
        let text = std::str::from_utf8(line).unwrap_or_default();
        match line {
            b"00" => self.stack.push(FALSE),
            b"01" => self.stack.push(TRUE),
            _ => self.push(text.trim_end_matches('L').parse().map_or(Value::Other, Value::Int)),
        }
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
            Some(Value::Object(object)) => object.items.extend(items),
            _ => bail!(Checkpoint, "the pickle adds to a list that is none"),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Place]) -> Result<()> {
        let pairs = items.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let is_even = items.len().is_multiple_of(2);
        match self.stack.last().map(|dict| &mut self.all[dict.0 as usize]) {
            Some(Value::Dict(dict)) if is_even => dict.extend(pairs),
            Some(Value::Object(object)) if is_even => object.pairs.extend(pairs),
            _ => bail!(Checkpoint, "the pickle sets keys of a dictionary that is none"),
        }
        Ok(())
    }

    /// Sets the attributes of an object. Those of a dictionary, such as the versions of a state_dict's layers, are not
    /// needed.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        match self.stack.last().map(|object| &mut self.all[object.0 as usize]) {
            Some(Value::Object(object)) => object.state = Some(state),
            Some(_) => {}
            None => bail!(Checkpoint, "the pickle sets attributes of a value that is not there"),
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
    pub(super) fn name(&self, global: Global) -> (&'a [u8], &'a [u8]) {
        (global.module.of(self.bytes), global.name.of(self.bytes))
    }
}
