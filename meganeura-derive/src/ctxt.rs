//! Collects mistakes, so that all of them are reported at once.

use std::cell::RefCell;
use std::fmt::Display;
use std::thread;

use quote::ToTokens;

/// The mistakes found so far. Must be [checked](Self::check) in the end; dropping it unchecked panics.
pub struct Ctxt {
    errors: RefCell<Option<Vec<syn::Error>>>,
}

impl Ctxt {
    pub fn new() -> Self {
        Self { errors: RefCell::new(Some(Vec::new())) }
    }

    /// A mistake in `tokens`, which the compiler will underline.
    pub fn error(&self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    pub fn push(&self, error: syn::Error) {
        self.errors.borrow_mut().as_mut().expect("no mistakes are found after the check").push(error);
    }

    /// All mistakes as one error, if there are any.
    pub fn check(self) -> syn::Result<()> {
        let errors = self.errors.take().expect("checked once");
        match errors.into_iter().reduce(|mut all, error| {
            all.combine(error);
            all
        }) {
            None => Ok(()),
            Some(all) => Err(all),
        }
    }
}

impl Drop for Ctxt {
    fn drop(&mut self) {
        assert!(thread::panicking() || self.errors.borrow().is_none(), "forgot to check for mistakes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_kept_in_order() {
        let ctxt = Ctxt::new();
        ctxt.error(quote::quote!(a), "first");
        ctxt.error(quote::quote!(b), "second");
        let messages: Vec<_> = ctxt.check().unwrap_err().into_iter().map(|error| error.to_string()).collect();
        assert_eq!(messages, ["first", "second"]);
    }

    #[test]
    fn no_mistakes_are_no_error() {
        assert!(Ctxt::new().check().is_ok());
    }

    #[test]
    #[should_panic(expected = "forgot to check")]
    fn a_forgotten_check_panics() {
        drop(Ctxt::new());
    }
}
