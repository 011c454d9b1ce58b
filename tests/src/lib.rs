//! Nothing but the tests beside it.
