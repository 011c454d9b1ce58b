//! Rules on words that must not occur in a file.

use super::File;

/// Macros that mean "not finished".
const LEFT_OVER: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// Words that tie the project to one machine, with the reason. They are split in two, so that this file obeys its own
/// rule.
const ONE_MACHINE: [(&str, &str, &str); 7] = [
    ("/wo", "rk/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("/ho", "me/", "a path of one machine"),
    ("/Use", "rs/", "a path of one machine"),
    ("crates", ".io", "clients find their registry themselves"),
    ("py", "pi.org", "clients find their registry themselves"),
    ("debian", ".org", "clients find their registry themselves"),
];

pub fn nothing_is_left_over(file: &File<'_>) -> Vec<(usize, String)> {
    find(file.code.unwrap_or_default(), |line| {
        let left = LEFT_OVER.iter().find(|word| starts_word(line, word))?;
        Some(format!("`{left}` is left over"))
    })
}

pub fn attributes_have_reasons(file: &File<'_>) -> Vec<(usize, String)> {
    let code = file.code.unwrap_or_default();
    let mut found = find(code, |line| {
        let ignores = line.contains("#[ignore]") || line.contains("#[ignore =");
        ignores.then(|| "an ignored test tests nothing: fix it or remove it".to_owned())
    });
    for opening in ["#[allow(", "#![allow("] {
        for (at, _) in code.match_indices(opening) {
            let attribute = code[at..].split_once(']').map_or(&code[at..], |(attribute, _)| attribute);
            if !attribute.contains("reason") {
                let line = code[..at].matches('\n').count() + 1;
                found.push((line, "say why: `#[expect(lint, reason = \"…\")]`".to_owned()));
            }
        }
    }
    found
}

pub fn names_no_machine(file: &File<'_>) -> Vec<(usize, String)> {
    // Cargo writes this file, with the source of each package.
    if file.path == "Cargo.lock" {
        return Vec::new();
    }
    find(file.text, |line| {
        let is_here =
            |(a, b, _): &&(&str, &str, &str)| line.match_indices(a).any(|(at, _)| line[at + a.len()..].starts_with(b));
        let (a, b, why) = ONE_MACHINE.iter().find(is_here)?;
        Some(format!("`{a}{b}` is out of place: {why}"))
    })
}

fn find(text: &str, complaint: impl Fn(&str) -> Option<String>) -> Vec<(usize, String)> {
    text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, complaint(line)?))).collect()
}

/// `true` if `word` occurs in `line`, and not as the end of a longer word.
fn starts_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::complaints;

    #[test]
    fn left_overs_are_found_in_code_only() {
        for bad in ["fn f() { todo!() }", "std::unimplemented!(\"x\")", "let x = dbg!(y);"] {
            assert_eq!(complaints("tests/src/lib.rs", bad).len(), 1, "{bad}");
        }
        for good in ["// todo!()", "let s = \"dbg!\";", "my_dbg!(x)", "fn todo() {}"] {
            assert!(complaints("tests/src/lib.rs", good).is_empty(), "{good}");
        }
        assert!(complaints("CONTRIBUTING.md", "We have no `todo!`.").is_empty());
    }

    #[test]
    fn an_allow_needs_a_reason() {
        for bad in ["#[allow(dead_code)]", "#![allow(\n    dead_code\n)]", "#[ignore]", "#[ignore = \"slow\"]"] {
            assert_eq!(complaints("tests/src/lib.rs", bad).len(), 1, "{bad}");
        }
        for good in
            ["#[expect(dead_code, reason = \"…\")]", "#[allow(dead_code, reason = \"generated\")]", "// #[ignore]"]
        {
            assert!(complaints("tests/src/lib.rs", good).is_empty(), "{good}");
        }
    }

    #[test]
    fn machines_are_found_in_every_text() {
        for bad in
            [concat!("cd /wo", "rk/x"), concat!("// see https://static.crates", ".io/x"), concat!("py", "pi.org")]
        {
            for path in ["README.md", "tests/src/lib.rs", ".ci/run", "examples/bench/torch_twin.py"] {
                assert_eq!(complaints(path, bad).len(), 1, "{path}: {bad}");
            }
        }
        assert!(complaints("README.md", "Published with cargo. See docs/root.md and the homework/ folder.").is_empty());
    }
}
