//! What `#[sluicegate::service]` says to what cannot work, and where.
//!
//! `refused` are errors of the macro itself. `compiler` are those of the compiler about what the
//! macro wrote: they must point at the user's code.

#[test]
fn errors_say_what_to_write_instead() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/refused/*.rs");
    cases.compile_fail("tests/ui/compiler/*.rs");
}
