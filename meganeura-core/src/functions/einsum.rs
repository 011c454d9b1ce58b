//! Einstein summation.

use std::panic::Location;

use crate::{Error, ErrorKind, Shape, Var};

impl Var {
    /// Einstein summation, like NumPy's and PyTorch's `einsum`: `Var::einsum("bij,bjk->bik", &[a, b])`
    ///
    /// Products are summed over the axes that the result does not name. Letters name the axes of each operand; axes
    /// with the same name have the same extent. A name that occurs twice in one operand takes the diagonal. Without
    /// `->`, the result has the names that occur once, in alphabetical order. Operands are joined from the first to the
    /// last, each pair by one [`matmul`](Self::matmul). Integers wrap around; all of their products are in memory at
    /// once.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2, 2], &[1.0, 2.0, 3.0, 4.0])?);
    /// let y = tape.input(&Tensor::from_slice(&device, [2], &[10.0, 1.0])?);
    /// assert_eq!(Var::einsum("ij,j->i", &[&x, &y]).to_vec()?, [12.0, 34.0]);
    /// assert_eq!(Var::einsum("ii->", &[&x]).item()?, 5.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// Errors: a formula that does not parse, or does not fit the operands. Ellipses are not supported.
    ///
    /// # Panics
    ///
    /// Panics if there is no operand: then there is no tape to record on.
    #[must_use]
    #[track_caller]
    pub fn einsum(formula: &str, operands: &[&Self]) -> Self {
        let first = operands.first().expect("`Var::einsum` needs at least one operand");
        if let Some(poisoned) = operands.iter().find(|operand| operand.error().is_some()) {
            return (*poisoned).clone();
        }
        let (names, result) = match parse(formula, operands) {
            Ok(parsed) => parsed,
            Err(message) => {
                let error = Error::new(ErrorKind::Shape, format!("{message} in \"{formula}\"")).in_op("einsum");
                let error = operands.iter().fold(error, |error, operand| error.operand(operand.ty(), operand.path()));
                return first.fail(error.at(Location::caller()));
            }
        };
        let mut terms = Vec::with_capacity(operands.len());
        for (operand, names) in operands.iter().zip(names) {
            terms.push(Term { value: (*operand).clone(), names }.diagonal());
        }
        let mut terms = terms.into_iter();
        let mut product = terms.next().expect("at least one operand");
        while let Some(next) = terms.next() {
            // Names that neither a later operand nor the result has are summed here.
            let rest: Vec<_> =
                terms.as_slice().iter().flat_map(|term| term.names.clone()).chain(result.clone()).collect();
            product = product.join(&next, &rest);
        }
        product.summed(&result).ordered(&result).value
    }
}

type Names = Vec<char>;

/// The names of each operand's axes, and those of the result's axes.
fn parse(formula: &str, operands: &[&Var]) -> Result<(Vec<Names>, Names), String> {
    let formula: String = formula.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, result) = match formula.split_once("->") {
        Some((inputs, result)) => (inputs, Some(result)),
        None => (&formula[..], None),
    };
    let names: Vec<Names> = inputs.split(',').map(|names| names.chars().collect()).collect();
    if let Some(odd) = names.iter().flatten().find(|name| !name.is_ascii_alphabetic()) {
        return Err(format!("axes are named by letters, not by {odd:?}"));
    }
    if names.len() != operands.len() {
        return Err(format!("{} operands are named, {} are given", names.len(), operands.len()));
    }
    let mut extents = std::collections::HashMap::new();
    for (names, operand) in names.iter().zip(operands) {
        let shape = operand.shape();
        if names.len() != shape.rank() {
            return Err(format!("{} names for the {} axes of {shape}", names.len(), shape.rank()));
        }
        for (&name, &extent) in names.iter().zip(shape.dims()) {
            let known = *extents.entry(name).or_insert(extent);
            if known != extent {
                return Err(format!("{name} has extents {known} and {extent}"));
            }
        }
    }
    let result = match result {
        Some(result) => result.chars().collect(),
        None => {
            let count = |name| names.iter().flatten().filter(|&&other| other == name).count();
            let mut result: Names = names.iter().flatten().copied().filter(|&name| count(name) == 1).collect();
            result.sort_unstable();
            result
        }
    };
    for (at, name) in result.iter().enumerate() {
        if !extents.contains_key(name) {
            return Err(format!("the result names {name:?}, no operand does"));
        }
        if result[..at].contains(name) {
            return Err(format!("the result names {name:?} twice"));
        }
    }
    Ok((names, result))
}

/// A value with named axes.
struct Term {
    value: Var,
    names: Names,
}

impl Term {
    /// The term with each name once.
    #[track_caller]
    fn diagonal(mut self) -> Self {
        while let Some((a, b)) = self.twice() {
            let rank = self.names.len();
            let rest: Vec<_> = (0..rank).filter(|&axis| axis != a && axis != b).collect();
            let name = self.names[a];
            self.value = self.value.permute(&[&rest[..], &[a, b]].concat()).diagonal();
            self.names = rest.into_iter().map(|axis| self.names[axis]).chain([name]).collect();
        }
        self
    }

    fn twice(&self) -> Option<(usize, usize)> {
        let names = self.names.iter().enumerate();
        names.clone().find_map(|(b, name)| self.names[..b].iter().position(|other| other == name).map(|a| (a, b)))
    }

    /// The term, summed over all names but `kept`.
    #[track_caller]
    fn summed(self, kept: &[char]) -> Self {
        let axes: Vec<_> = (0..self.names.len()).filter(|&axis| !kept.contains(&self.names[axis])).collect();
        if axes.is_empty() {
            return self;
        }
        let names = self.names.into_iter().filter(|name| kept.contains(name)).collect();
        Self { value: self.value.sum_over(&axes), names }
    }

    /// The term with these names, in this order.
    #[track_caller]
    fn ordered(self, names: &[char]) -> Self {
        let axis = |name: &char| self.names.iter().position(|other| other == name).expect("the term has this name");
        let axes: Vec<_> = names.iter().map(axis).collect();
        let is_ordered = axes.iter().copied().eq(0..axes.len());
        Self { value: if is_ordered { self.value } else { self.value.permute(&axes) }, names: names.to_vec() }
    }

    /// The product with another term, summed over all names but `rest`.
    #[track_caller]
    fn join(self, other: &Self, rest: &[char]) -> Self {
        let needed = |names: &[char]| [names, rest].concat();
        let (a, b) = (self.summed(&needed(&other.names)), other.borrow());
        let b = b.summed(&needed(&a.names));
        let of = |term: &Self, keep: &dyn Fn(&char) -> bool| term.names.iter().copied().filter(keep).collect::<Names>();
        let batch = of(&a, &|name| b.names.contains(name) && rest.contains(name));
        let contracted = of(&a, &|name| b.names.contains(name) && !rest.contains(name));
        let rows = of(&a, &|name| !b.names.contains(name));
        let columns = of(&b, &|name| !a.names.contains(name));
        let extents: Vec<_> = [&a, &b]
            .iter()
            .flat_map(|term| term.names.iter().copied().zip(term.value.shape().dims().to_vec()))
            .collect();
        let extent = |name: &char| extents.iter().find(|(other, _)| other == name).map_or(1, |(_, extent)| *extent);
        let count = |names: &[char]| names.iter().map(extent).product::<usize>();
        let [n, m, k, l] = [&batch, &rows, &contracted, &columns].map(|names| count(names));
        let a = a.ordered(&[&batch[..], &rows, &contracted].concat()).value;
        let b = b.ordered(&[&batch[..], &contracted, &columns].concat()).value;
        let names = [batch, rows, columns].concat();
        let dims: Vec<_> = names.iter().map(extent).collect();
        let value = if a.ty().dtype.is_float() {
            a.reshape([n, m, k]).matmul(&b.reshape([n, k, l]))
        } else {
            (a.reshape([n, m, k, 1]) * b.reshape([n, 1, k, l])).sum_over(&[2])
        };
        match Shape::try_new(&dims) {
            Some(shape) => Self { value: value.reshape(shape), names },
            None => {
                let message = format!("a product of {} axes", dims.len());
                Self { value: value.refuse("einsum", ErrorKind::Shape, message), names }
            }
        }
    }

    fn borrow(&self) -> Self {
        Self { value: self.value.clone(), names: self.names.clone() }
    }
}
