//! Lists whose elements are named by a word and their number.

use meganeura::Result;
use meganeura::module::{At, Slot, SlotMut};
use meganeura::prelude::*;

/// A list whose elements have the paths `WORD0`, `WORD1` and so on; as a builder, one of such a list.
#[derive(Debug, Clone)]
pub(crate) struct Numbered<T> {
    word: &'static str,
    items: Vec<T>,
}

impl<T> Numbered<T> {
    pub(crate) fn new(word: &'static str, items: Vec<T>) -> Self {
        Self { word, items }
    }
}

impl<M: Module> Module for Numbered<M> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        for (index, item) in self.items.iter().enumerate() {
            item.visit(at.field(&format!("{}{index}", self.word)), f);
        }
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        for (index, item) in self.items.iter_mut().enumerate() {
            item.visit_mut(at.field(&format!("{}{index}", self.word)), f);
        }
    }
}

impl<L: Layer> Layer for Numbered<L> {
    fn forward(&self, x: &Var) -> Var {
        self.items.iter().fold(x.clone(), |x, item| item.forward(&x))
    }
}

impl<I: Init> Init for Numbered<I> {
    type Output = Numbered<I::Output>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        let Self { word, items } = self;
        let build = |(index, item): (usize, I)| item.build(device, seed.field(&format!("{word}{index}")));
        Ok(Numbered { word, items: items.into_iter().enumerate().map(build).collect::<Result<_>>()? })
    }
}
