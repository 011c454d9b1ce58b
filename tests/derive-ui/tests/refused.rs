//! Code that the derive refuses, with the expected messages: one misuse per file, in a folder for its kind.
//! `TRYBUILD=overwrite` rewrites the messages.

#[test]
fn refused() {
    trybuild::TestCases::new().compile_fail("tests/refused/*/*.rs");
}
