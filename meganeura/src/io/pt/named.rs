//! The tensors of a pickle by name.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::rc::Rc;

use super::pickle::{Global, Place, Text, Value, Values};
use super::view::{Refusal, View};
use super::work::Work;
use crate::Result;
use crate::error::{bail, shortened};

/// The maximum nesting of dictionaries, whose keys are joined to names, and of tuples in keys.
const DEEPEST: usize = 64;

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
    /// Tensors, or the reasons that they are not converted.
    pub(super) tensors: BTreeMap<String, std::result::Result<Rc<View>, String>>,
    /// A tensor may have many names; its extents are read once.
    known: HashMap<Place, std::result::Result<Rc<View>, String>>,
}

impl<'a, 'w> Named<'a, 'w> {
    /// Collects the tensors of these values. Their names are the keys of the nested dictionaries and the positions in
    /// lists and tuples, joined by dots.
    pub(super) fn of(values: &'a Values<'a>, work: &'w mut Work) -> Result<Self> {
        let mut named = Self { values, work, path: Vec::new(), tensors: BTreeMap::new(), known: HashMap::new() };
        named.find(values.root)?;
        Ok(named)
    }

    fn find(&mut self, place: Place) -> Result<()> {
        let values = self.values;
        self.work.spend(1)?;
        match values.get(place) {
            Value::View(_) | Value::Unsupported(_) => return self.add(place),
            Value::Dict(pairs) => {
                self.expect_depth()?;
                for &(key, value) in pairs {
                    self.within(Step::Key(key), value)?;
                }
            }
            Value::List(items) => self.items(items)?,
            Value::Tuple(items) => self.items(items)?,
            _ => {}
        }
        Ok(())
    }

    fn items(&mut self, items: &[Place]) -> Result<()> {
        self.expect_depth()?;
        for (index, &item) in items.iter().enumerate() {
            self.within(Step::Index(index), item)?;
        }
        Ok(())
    }

    fn within(&mut self, step: Step, place: Place) -> Result<()> {
        self.path.push(step);
        self.find(place)?;
        self.path.pop();
        Ok(())
    }

    fn expect_depth(&self) -> Result<()> {
        if self.path.len() == DEEPEST {
            bail!(Checkpoint, "values are nested more than {DEEPEST} deep, or in a cycle");
        }
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
        if self.tensors.insert(name.clone(), known).is_some() {
            bail!(
                Checkpoint,
                "two tensors are called `{}`: keys that are no texts are shown as they are written, and joined by dots",
                shortened(&name)
            );
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
            _ => bail!(
                Checkpoint,
                "`{}` has a key that is not a text, a number or a tuple of them, so its tensors have no names",
                shortened(name)
            ),
        }
        Ok(())
    }

    fn write_text(&mut self, text: Text, name: &mut String) -> Result<()> {
        self.work.spend(text.len())?;
        name.push_str(&String::from_utf8_lossy(self.values.text(text)));
        Ok(())
    }
}
