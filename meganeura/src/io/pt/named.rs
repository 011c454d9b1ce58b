//! The tensors of a pickle by name.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::rc::Rc;

use super::pickle::NONE;
use super::value::{Global, Object, Place, Text, Value, Values};
use super::view::{self, Refusal, View};
use super::work::Work;
use crate::Result;
use crate::error::{bail, shortened};

/// The maximum nesting of dictionaries, whose keys are joined to names, and of tuples in keys.
const DEEPEST: usize = 64;

/// The dictionaries of a module whose tensors its `state_dict()` has.
const MODULE: [&str; 3] = ["_parameters", "_buffers", "_modules"];

/// The steps that a name takes besides its letters: it becomes a part of several tables.
const NAME: usize = 64;

/// A part of a name.
#[derive(Clone, Copy)]
enum Step {
    Key(Place),
    Index(usize),
}

/// The tensors of a file, by name.
pub(super) struct Named<'a, 'w> {
    values: &'a Values<'a>,
    work: &'w mut Work,
    path: Vec<Step>,
    /// The number of values around the present one.
    depth: usize,
    /// The objects around it, and those that were walked.
    open: HashSet<Place>,
    seen: HashSet<Place>,
    /// Tensors, or the reasons that they are not converted.
    pub(super) tensors: BTreeMap<String, std::result::Result<Rc<View>, String>>,
    /// A tensor may have many names; its extents are read once.
    known: HashMap<Place, std::result::Result<Rc<View>, String>>,
}

impl<'a, 'w> Named<'a, 'w> {
    /// Collects the tensors of these values. Their names are the keys of the nested dictionaries, the attributes of
    /// objects and the positions in lists and tuples, joined by dots; those of a module are the names of its
    /// `state_dict()`.
    pub(super) fn of(values: &'a Values<'a>, work: &'w mut Work) -> Result<Self> {
        let (open, seen) = (HashSet::new(), HashSet::new());
        let (tensors, known) = (BTreeMap::new(), HashMap::new());
        let mut named = Self { values, work, path: Vec::new(), depth: 0, open, seen, tensors, known };
        named.find(values.root)?;
        Ok(named)
    }

    fn find(&mut self, place: Place) -> Result<()> {
        let values = self.values;
        self.work.spend(1)?;
        if self.depth > DEEPEST {
            bail!(Checkpoint, "values are nested more than {DEEPEST} deep, or in a cycle");
        }
        self.depth += 1;
        match values.get(place) {
            Value::View(_) | Value::Unsupported(_) => self.add(place)?,
            Value::Dict(pairs) => self.pairs(pairs)?,
            Value::List(items) => self.items(items)?,
            Value::Tuple(items) => self.items(items)?,
            Value::Object(object) if view::is_array(object, values) => self.add(place)?,
            // Objects often refer to those that have them.
            Value::Object(object) if self.open.insert(place) => {
                self.object(place, object)?;
                self.open.remove(&place);
            }
            _ => {}
        }
        self.depth -= 1;
        Ok(())
    }

    fn object(&mut self, place: Place, object: &'a Object) -> Result<()> {
        let values = self.values;
        let state = object.state.map_or(&Value::None, |state| values.get(state));
        if let Value::Dict(attributes) = state {
            self.work.spend(MODULE.len() * attributes.len())?;
            let parts = MODULE.map(|name| values.entry(attributes, name));
            if parts.iter().all(Option::is_some) {
                return self.module(attributes, parts);
            }
        }
        // A shared part of a program in TorchScript has several names, like that of a module. Other objects may refer
        // to each other in many ways.
        let is_script = object.class.is_some_and(|class| values.text(class.module).starts_with(b"__torch__"));
        if !self.seen.insert(place) && !is_script {
            return Ok(());
        }
        let is_ordered = object.class.is_some_and(|class| values.is(class, &[b"collections"], b"OrderedDict"));
        match values.get(object.arguments) {
            // In files of Python 2.
            Value::Tuple(arguments) if is_ordered => self.listed(arguments)?,
            Value::Tuple(arguments) => self.items(arguments)?,
            _ => {}
        }
        self.pairs(&object.pairs)?;
        self.items(&object.items)?;
        match (object.state, state) {
            // Attributes, and those that have places of their own in the class.
            (_, Value::Tuple(both)) if both.len() == 2 => both.iter().try_for_each(|&state| self.find(state)),
            (Some(state), _) => self.find(state),
            (None, _) => Ok(()),
        }
    }

    /// The contents of an `OrderedDict` that was made of a list of pairs.
    fn listed(&mut self, arguments: &[Place]) -> Result<()> {
        let values = self.values;
        let Some(Value::List(pairs)) = arguments.first().map(|&list| values.get(list)) else { return Ok(()) };
        for &pair in pairs {
            match values.get(pair) {
                Value::List(pair) if pair.len() == 2 => self.within(Step::Key(pair[0]), pair[1])?,
                Value::Tuple(pair) if pair.len() == 2 => self.within(Step::Key(pair[0]), pair[1])?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The tensors of a module's `state_dict()`.
    fn module(&mut self, attributes: &'a [(Place, Place)], parts: [Option<&'a Value>; 3]) -> Result<()> {
        let values = self.values;
        let unsaved = match values.entry(attributes, "_non_persistent_buffers_set") {
            Some(Value::List(unsaved)) => &unsaved[..],
            _ => &[],
        };
        let unsaved: HashSet<&[u8]> = unsaved.iter().filter_map(|&key| self.key_text(key)).collect();
        for (part, name) in parts.into_iter().flatten().zip(MODULE) {
            let pairs = match part {
                Value::Dict(pairs) => pairs,
                Value::Object(object) => match values.get(object.arguments) {
                    Value::Tuple(arguments) if object.pairs.is_empty() => {
                        self.listed(arguments)?;
                        continue;
                    }
                    _ => &object.pairs,
                },
                _ => continue,
            };
            for &(key, value) in pairs {
                let is_unsaved = name == "_buffers" && self.key_text(key).is_some_and(|key| unsaved.contains(key));
                if !is_unsaved && value != NONE {
                    self.within(Step::Key(key), value)?;
                }
            }
        }
        Ok(())
    }

    fn key_text(&self, key: Place) -> Option<&'a [u8]> {
        match *self.values.get(key) {
            Value::Text(text) => Some(self.values.text(text)),
            _ => None,
        }
    }

    fn pairs(&mut self, pairs: &[(Place, Place)]) -> Result<()> {
        pairs.iter().try_for_each(|&(key, value)| self.within(Step::Key(key), value))
    }

    fn items(&mut self, items: &[Place]) -> Result<()> {
        items.iter().enumerate().try_for_each(|(index, &item)| self.within(Step::Index(index), item))
    }

    fn within(&mut self, step: Step, place: Place) -> Result<()> {
        self.path.push(step);
        self.find(place)?;
        self.path.pop();
        Ok(())
    }

    /// Adds the tensor at a place under the name of the path.
    fn add(&mut self, place: Place) -> Result<()> {
        self.work.spend(NAME)?;
        let name = self.name()?;
        let known = match self.known.get(&place) {
            Some(known) => known.clone(),
            None => {
                let read = match self.values.get(place) {
                    Value::View(view) => View::read(view, self.values, self.work),
                    Value::Object(object) => View::of_array(object, self.values, self.work),
                    Value::Unsupported(function) if self.values.text(function.name) == b"_rebuild_qtensor" => {
                        Err(Refusal::Unsupported(
                            "it is quantised; save its `dequantize()`, or its `int_repr()` and its scales".to_owned(),
                        ))
                    }
                    Value::Unsupported(function) => {
                        let function = self.values.text(function.name);
                        let function = String::from_utf8_lossy(&function[..function.len().min(256)]);
                        Err(Refusal::Unsupported(format!(
                            "PyTorch rebuilds it with `{function}`, which is not supported"
                        )))
                    }
                    _ => unreachable!("only tensors are added"),
                };
                let read = match read {
                    Ok(view) => Ok(Rc::new(view)),
                    Err(Refusal::Unsupported(why)) => Err(why),
                    Err(Refusal::Invalid(error)) => return Err(error.context(shortened(&name))),
                };
                self.known.insert(place, read.clone());
                read
            }
        };
        match self.tensors.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(known)),
            Entry::Occupied(entry) if *entry.get() == known => {}
            Entry::Occupied(mut entry) => {
                let why = format!(
                    "two tensors are called `{}`: keys that are no texts are shown as they are written, and joined by dots",
                    shortened(entry.key())
                );
                drop(entry.insert(Err(why)));
            }
        }
        Ok(())
    }

    fn name(&mut self) -> Result<String> {
        let mut name = String::new();
        for at in 0..self.path.len() {
            if at > 0 {
                name.push('.');
            }
            match self.path[at] {
                Step::Key(key) => self.write_key(key, &mut name, 0)?,
                Step::Index(index) => drop(write!(name, "{index}")),
            }
        }
        Ok(name)
    }

    /// Appends a dictionary's key as Python would write it. No key is left out: its tensors would be lost.
    fn write_key(&mut self, key: Place, name: &mut String, depth: usize) -> Result<()> {
        self.work.spend(1)?;
        match self.values.get(key) {
            &Value::Text(text) => self.write_text(text, name)?,
            Value::Int(number) => drop(write!(name, "{number}")),
            Value::Float(number) => drop(write!(name, "{number:?}")),
            Value::Bool(value) => name.push_str(if *value { "True" } else { "False" }),
            Value::None => name.push_str("None"),
            &Value::Global(Global { module, name: class }) => {
                self.write_text(module, name)?;
                name.push('.');
                self.write_text(class, name)?;
            }
            Value::Tuple(items) if depth < DEEPEST => {
                name.push('(');
                for (at, &item) in items.iter().enumerate() {
                    name.push_str(if at > 0 { ", " } else { "" });
                    self.write_key(item, name, depth + 1)?;
                }
                name.push(')');
            }
            &Value::Bytes(bytes) => {
                name.push_str("b'");
                self.write_text(bytes.text, name)?;
                name.push('\'');
            }
            Value::Object(object) if object.class.is_some() && depth < DEEPEST => {
                let Global { module, name: class } = object.class.expect("it was looked at");
                name.push('<');
                self.write_text(module, name)?;
                name.push('.');
                self.write_text(class, name)?;
                name.push('>');
            }
            _ => name.push_str("<object>"),
        }
        Ok(())
    }

    fn write_text(&mut self, text: Text, name: &mut String) -> Result<()> {
        self.work.spend(text.len())?;
        name.push_str(&String::from_utf8_lossy(self.values.text(text)));
        Ok(())
    }
}
