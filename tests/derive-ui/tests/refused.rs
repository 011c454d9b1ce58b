//! What the derive refuses, and in which words: one misuse per file, in a folder for its kind. `TRYBUILD=overwrite`
//! writes the words anew.

#[test]
fn refused() {
    trybuild::TestCases::new().compile_fail("tests/refused/*/*.rs");
}
