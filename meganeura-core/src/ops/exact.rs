//! Floats as attributes.

use std::fmt;
use std::hash::{Hash, Hasher};

/// A float that is compared and hashed by its bits, as an attribute of an operation.
#[derive(Clone, Copy)]
pub struct Exact(pub f64);

impl fmt::Debug for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq for Exact {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Exact {}

impl Hash for Exact {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
