//! Golden text files. `MEGANEURA_BLESS=1` writes the new text instead of comparing it.

use std::path::Path;

use libtest_mimic::Failed;

use crate::Outcome;

/// Compares `found` with the file of this name.
pub(crate) fn check(name: &str, found: &str) -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("suite/golden").join(format!("{name}.txt"));
    if std::env::var_os("MEGANEURA_BLESS").is_some_and(|value| value == "1") {
        return Ok(std::fs::write(path, found)?);
    }
    let expected = std::fs::read_to_string(&path)
        .map_err(|error| Failed::from(format!("{}: {error}; MEGANEURA_BLESS=1 writes it", path.display())))?;
    difference(&expected, found).map_or(Ok(()), |difference| {
        Err(format!("golden/{name}.txt has changed; if that is intended, run with MEGANEURA_BLESS=1\n{difference}")
            .into())
    })
}

/// Compares a plan with the file of this name, except for the launches of its steps, in which devices differ.
pub(crate) fn check_plan(name: &str, plan: &str) -> Outcome {
    let step = |line: &str| match line.rsplit_once("  [") {
        Some((step, _)) => format!("{step}\n"),
        None => format!("{line}\n"),
    };
    check(name, &plan.lines().filter(|line| !line.starts_with("launches: ")).map(step).collect::<String>())
}

/// The first different line, in both versions.
fn difference(expected: &str, found: &str) -> Option<String> {
    let (mut old, mut new) = (expected.lines(), found.lines());
    for line in 1.. {
        match (old.next(), new.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            (a, b) => {
                let show = |side: Option<&str>| side.unwrap_or("(the end)").to_owned();
                return Some(format!("line {line}\n  was: {}\n  is:  {}", show(a), show(b)));
            }
        }
    }
    None
}

/// Tests that the comparison itself can fail.
pub(crate) fn collect(trials: &mut Vec<libtest_mimic::Trial>) {
    trials.push(libtest_mimic::Trial::test("golden::comparison_can_fail", || {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert!(difference("a\nb\n", "a\nc\n").is_some_and(|text| text.contains("line 2")));
        assert!(difference("a\n", "a\nb\n").is_some());
        assert!(difference("a\nb\n", "a\n").is_some());
        Ok(())
    }));
}
