//! The calls of a pickle, and its references to storages. None is run: the results of known calls are described, and
//! those of others are objects that have nothing but their arguments.

use super::pickle::{EMPTY_TUPLE, Machine};
use super::value::{Bytes, Global, Object, Place, Storage, Value, View};
use crate::Result;
use crate::error::{bail, shortened};

impl Machine<'_> {
    /// A reference to data outside of the pickle: `('storage', class, key, device, elements, part)`, or, in files
    /// before PyTorch 1.6, `('module', class, file, source)`, which is the class.
    pub(super) fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let Value::Tuple(parts) = self.get(id) else { bail!(Checkpoint, "the pickle refers to something unknown") };
        let &[kind, class, key, ..] = &parts[..] else {
            bail!(Checkpoint, "the pickle refers to something that is not a storage");
        };
        let part = parts.get(5).copied();
        let (&Value::Text(kind), &Value::Global(global)) = (self.get(kind), self.get(class)) else {
            bail!(Checkpoint, "the pickle refers to something that is not a storage");
        };
        let kind = kind.of(self.bytes);
        if kind == b"module" {
            self.stack.push(class);
            return Ok(());
        }
        let (module, name) = self.name(global);
        let is_class = module.starts_with(b"torch") && name.ends_with(b"Storage");
        let (b"storage", true, &Value::Text(key)) = (kind, is_class, self.get(key)) else {
            let kind = String::from_utf8_lossy(&kind[..kind.len().min(1 << 10)]).into_owned();
            bail!(Checkpoint, "the pickle refers to `{}`, which is not a storage", shortened(&kind));
        };
        let offset = match part.map(|part| self.get(part)) {
            None | Some(Value::None) => 0,
            Some(Value::Tuple(part)) => match part.get(1).map(|&offset| self.get(offset)) {
                Some(&Value::Int(offset)) => offset,
                _ => bail!(Checkpoint, "the pickle refers to an invalid part of a storage"),
            },
            Some(_) => bail!(Checkpoint, "the pickle refers to an invalid part of a storage"),
        };
        self.push(Value::Storage(Storage { class: global, key, offset }));
        Ok(())
    }

    /// A call. Arguments are referred to, not copied: many calls may share them.
    pub(super) fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        if !matches!(self.get(arguments), Value::Tuple(_)) {
            bail!(Checkpoint, "the pickle calls something without arguments");
        }
        let &Value::Global(global) = self.get(function) else {
            self.object(None, arguments);
            return Ok(());
        };
        match (self.name(global), self.argument(arguments, 0), self.argument(arguments, 2)) {
            // A subclass of tensors, or a tensor with attributes: `(function, class, arguments, attributes)`.
            ((b"torch._tensor", b"_rebuild_from_type_v2"), Some(rebuild), Some(inner)) => {
                match (self.get(rebuild), self.get(inner)) {
                    (&Value::Global(rebuild), Value::Tuple(_)) => self.call_of(rebuild, inner),
                    _ => self.call_of(global, arguments),
                }
            }
            _ => self.call_of(global, arguments),
        }
    }

    fn argument(&self, arguments: Place, at: usize) -> Option<Place> {
        match self.get(arguments) {
            Value::Tuple(places) => places.get(at).copied(),
            _ => None,
        }
    }

    fn object(&mut self, class: Option<Global>, arguments: Place) {
        let (items, pairs) = (Vec::new(), Vec::new());
        self.push(Value::Object(Box::new(Object { class, arguments, items, pairs, state: None })));
    }

    fn call_of(&mut self, global: Global, arguments: Place) -> Result<()> {
        let argument = |at: usize| self.argument(arguments, at);
        let value = |at: usize| argument(at).map(|place| self.get(place));
        let (module, name) = self.name(global);
        let result = match (module, name) {
            (b"collections", b"OrderedDict") if arguments == EMPTY_TUPLE => Value::Dict(Vec::new()),
            (b"torch._utils", b"_rebuild_parameter" | b"_rebuild_parameter_with_state")
            | (b"torch.nn.parameter", b"Parameter" | b"Buffer")
            | (b"torch.jit._pickle", _) => match argument(0) {
                Some(first) => {
                    self.stack.push(first);
                    return Ok(());
                }
                None => Value::Other,
            },
            (b"torch", b"Size")
            | (b"builtins" | b"__builtin__", b"set" | b"frozenset" | b"list" | b"tuple" | b"dict")
            | (b"collections", b"Counter")
                if matches!(value(0), Some(Value::Tuple(_) | Value::List(_) | Value::Dict(_))) =>
            {
                let contents = argument(0).expect("it was looked at");
                self.stack.push(contents);
                return Ok(());
            }
            (b"_codecs", b"encode") => match (value(0), value(1)) {
                (Some(&Value::Text(text)), Some(&Value::Text(encoding)))
                    if matches!(encoding.of(self.bytes), b"latin1" | b"latin-1") =>
                {
                    Value::Bytes(Bytes::latin(text))
                }
                _ => Value::Other,
            },
            // Parts of tensors that are not supported.
            (b"torch", b"device") | (b"torch.serialization", b"_get_layout") => Value::Other,
            (b"torch._utils", b"_rebuild_tensor" | b"_rebuild_tensor_v2" | b"_rebuild_tensor_v3") => {
                let (Some(&Value::Storage(storage)), Some(&Value::Int(offset)), Some(shape), Some(strides)) =
                    (value(0), value(1), argument(2), argument(3))
                else {
                    let name = String::from_utf8_lossy(name);
                    bail!(Checkpoint, "the pickle describes a tensor with invalid arguments of `{name}`");
                };
                let (dtype, metadata) = match name {
                    b"_rebuild_tensor_v3" => (argument(6), argument(7)),
                    _ => (None, argument(6)),
                };
                let offset = offset.saturating_add(storage.offset);
                Value::View(Box::new(View { storage, offset, shape, strides, dtype, metadata }))
            }
            (b"torch._utils", name) if name.starts_with(b"_rebuild_") => Value::Unsupported(global),
            (b"torch._tensor", name) if name.starts_with(b"_rebuild_") => Value::Unsupported(global),
            _ => {
                self.object(Some(global), arguments);
                return Ok(());
            }
        };
        self.push(result);
        Ok(())
    }
}
