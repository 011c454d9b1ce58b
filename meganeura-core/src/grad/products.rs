//! Products of Hessians and Jacobians with vectors, each by two sweeps.

use super::Grads;
use super::sweep::sweep;
use crate::error::{bail, here};
use crate::graph::{Graph, ValueId};
use crate::module::near::nearest;
use crate::module::{Module, ModuleExt};
use crate::tape::{Tape, Var};
use crate::{Error, ErrorKind, Param, Result};

impl Tape {
    /// Appends the product of a scalar's Hessian with a vector.
    ///
    /// This is `Σⱼ ∂²loss/∂xᵢ∂xⱼ · vⱼ`, for every parameter and value `xᵢ` for which [`backward`](Self::backward)
    /// returns a gradient.
    ///
    /// `vectors` pairs each value with its part of the vector, of the same shape; the parts of other values are zero.
    /// The values must not depend on each other. The Hessian is never in memory: the gradient is differentiated once
    /// more, along the vector. The products are values like any other; they may be differentiated again, or be the
    /// vectors of another product.
    ///
    /// For example, the largest eigenvalue of a Hessian by power iteration:
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2], &[0.3, -0.7])?);
    /// // x₀² + x₀·x₁ + x₁²: the Hessian is [[2, 1], [1, 2]], with eigenvalues 3 and 1.
    /// let loss = x.square().sum() + x.slice(0, 0..1).sum() * x.slice(0, 1..2).sum();
    /// let mut v = tape.input(&Tensor::from_slice(&device, [2], &[1.0, 0.0])?);
    /// let mut eigenvalue = v.norm();
    /// for _ in 0..20 {
    ///     let product = tape.hvp(&loss, &[(&x, &v)])?.of(&x).expect("the loss is not linear in x");
    ///     eigenvalue = product.norm();
    ///     v = product / &eigenvalue;
    /// }
    /// assert!((eigenvalue.item()? - 3.0).abs() < 1e-5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`backward`](Self::backward). Fails also if a vector does not have the shape of its value, or if the
    /// loss depends on none of the values.
    #[track_caller]
    pub fn hvp(&self, loss: &Var, vectors: &[(&Var, &Var)]) -> Result<Grads> {
        here(|| self.expect_vectors("hvp", vectors))?;
        let grads = self.backward(loss)?;
        here(|| self.along("hvp", &grads, vectors))
    }

    /// [`hvp`](Self::hvp) for a module's parameters.
    ///
    /// `vectors` holds the parts of the vector by path, in the form in which [`Grads::named`] returns gradients and
    /// products.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let net = (Linear::new(3, 8), Tanh, Linear::new(8, 1)).init(&device, Seed::new(1))?;
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::randn(&device, [16, 3], 2)?);
    /// let loss = net.forward(&x).square().mean();
    /// // How fast the loss bends along its gradient: gᵀHg / gᵀg.
    /// let gradient = tape.backward(&loss)?.named(&net)?;
    /// let product = tape.module_hvp(&loss, &net, &gradient)?.named(&net)?;
    /// let dot = |a: &[(String, Var)], b: &[(String, Var)]| {
    ///     let terms = a.iter().zip(b).map(|((_, a), (_, b))| (a * b).sum());
    ///     terms.reduce(|a, b| a + b).expect("the module has parameters")
    /// };
    /// let curvature = dot(&gradient, &product) / dot(&gradient, &gradient);
    /// assert!(curvature.item()? > 0.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`hvp`](Self::hvp), and if the module has no parameter with a given path.
    #[track_caller]
    pub fn module_hvp(&self, loss: &Var, module: &dyn Module, vectors: &[(String, Var)]) -> Result<Grads> {
        let leaves = module.named_parameters();
        let mut parameters = Vec::with_capacity(vectors.len());
        for (path, _) in vectors {
            // The parameter without its adapter, if it has one, since that has the gradient.
            parameters.push(self.cell(here(|| at_path(&leaves, path))?.cell()));
        }
        let vectors: Vec<_> = parameters.iter().zip(vectors.iter().map(|(_, v)| v)).collect();
        self.hvp(loss, &vectors)
    }

    /// Appends the product of a Jacobian with a vector.
    ///
    /// This is `Σⱼ ∂y/∂xⱼ · vⱼ`, the derivative of `y` along the vector. It has the shape of `y`.
    ///
    /// `vectors` is the same as for [`hvp`](Self::hvp). The product takes two sweeps: the gradient of `Σ u·y` is linear
    /// in `u`, and its derivative with respect to `u`, along the vector, is the product. Values that only the first
    /// sweep needs are never computed.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let [x, v] = [&[1.0, 2.0, 3.0], &[0.5, 0.0, -1.0]].map(|x| Tensor::from_slice(&device, [3], x));
    /// let (x, v) = (tape.input(&x?), tape.input(&v?));
    /// assert_eq!(tape.jvp(&x.square(), &[(&x, &v)])?.to_vec()?, [1.0, 0.0, -6.0]); // 2x·v
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`hvp`](Self::hvp).
    #[track_caller]
    pub fn jvp(&self, y: &Var, vectors: &[(&Var, &Var)]) -> Result<Var> {
        here(|| self.expect_vectors("jvp", vectors))?;
        let u = self.constant(0.0).expand(y.shape());
        let grads = self.backward_with(y, &u)?;
        let products = here(|| self.along("jvp", &grads, vectors))?;
        Ok(products.of(&u).unwrap_or(u))
    }

    /// Propagates cotangents from the seeds, pairs of a value and its cotangent, back to the values `x`. All nodes on
    /// the way have number `first` or higher. The cotangent is `None` where no path leads to a value. For gradient
    /// rules that differentiate a formula which they recorded themselves.
    pub(crate) fn pull_back<const N: usize>(
        &self,
        first: usize,
        y: &[(&Var, &Var)],
        x: [&Var; N],
    ) -> Result<[Option<Var>; N]> {
        let ids = y.iter().map(|(y, dy)| Ok((y.id()?, dy.id()?))).collect::<Result<Vec<_>>>()?;
        let mut wanted = vec![false; self.with_graph(Graph::values)];
        let x = x.iter().map(|x| x.id()).collect::<Result<Vec<_>>>()?;
        x.iter().for_each(|x| wanted[x.index()] = true);
        let cotangents = sweep(self, first, &ids, wanted)?;
        Ok(std::array::from_fn(|k| cotangents.get(&x[k]).map(|&dx| self.var(dx))))
    }

    /// Differentiates the gradients along vectors.
    fn along(&self, op: &'static str, grads: &Grads, vectors: &[(&Var, &Var)]) -> Result<Grads> {
        let seeds: Vec<_> = vectors.iter().filter_map(|&(x, v)| Some((grads.of(x)?, v))).collect();
        if seeds.is_empty() {
            return Err(Error::new(ErrorKind::NoGradient, "depends on none of the values that have vectors").in_op(op));
        }
        let ids = seeds.iter().map(|(gradient, v)| Ok((gradient.id()?, v.id()?)));
        self.sweep_from(&ids.collect::<Result<Vec<(ValueId, ValueId)>>>()?)
    }

    fn expect_vectors(&self, op: &'static str, vectors: &[(&Var, &Var)]) -> Result<()> {
        for (k, (x, v)) in vectors.iter().enumerate() {
            x.id()?;
            v.id()?;
            let refuse = |kind, message| {
                Err(Error::new(kind, message).in_op(op).operand(x.ty(), x.path()).operand(v.ty(), v.path()))
            };
            if !self.same(x.tape()) || !self.same(v.tape()) {
                return refuse(ErrorKind::Argument, format!("value {k} or its vector belongs to another tape"));
            }
            if x.ty() != v.ty() {
                return refuse(ErrorKind::Shape, format!("the vector of value {k} must have the value's type"));
            }
        }
        Ok(())
    }
}

fn at_path<'m>(parameters: &[(String, &'m Param)], path: &str) -> Result<&'m Param> {
    if let Some((_, parameter)) = parameters.iter().find(|(of, _)| of == path) {
        return Ok(parameter);
    }
    let near = nearest(path, parameters.iter().map(|(of, _)| (&of[..], 0, of)));
    let near = near.first().map_or(String::new(), |(_, near)| format!("; near it is `{near}`"));
    bail!(Argument, "the module has no parameter at `{path}`{near}")
}
