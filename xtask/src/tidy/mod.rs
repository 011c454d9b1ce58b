//! `cargo xtask tidy`: the house rules that no compiler checks.
//!
//! Each rule is a function from a file to the lines that break it, each with the remedy. No rule has exceptions.

mod code;
mod files;
mod walls;
mod words;

use std::path::Path;
use std::{fmt, fs};

use crate::Done;
use crate::process::root;

/// A file of the repository.
struct File<'a> {
    /// The path from the root, with `/` on every system.
    path: &'a str,
    text: &'a str,
    /// The text with comments and literals blanked, if this is Rust; line numbers are the same.
    code: Option<&'a str>,
}

/// A line that breaks a rule. Lines count from 1.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// The lines that break a rule, with the remedy.
type Rule = fn(&File<'_>) -> Vec<(usize, String)>;

const RULES: [Rule; 9] = [
    files::has_a_name_of_its_own,
    files::is_short,
    files::is_narrow,
    walls::graphics_stay_in_gpu,
    walls::layers_look_down,
    walls::engines_know_no_operation,
    words::nothing_is_left_over,
    words::attributes_have_reasons,
    words::names_no_machine,
];

/// Checks every file of the repository.
pub fn run() -> Done {
    let root = root();
    let mut paths = Vec::new();
    collect(&root, "", &mut paths).map_err(|error| format!("tidy cannot list the files: {error}"))?;
    paths.sort_unstable();

    let mut violations = Vec::new();
    for path in &paths {
        let bytes = fs::read(root.join(path)).map_err(|error| format!("tidy cannot read {path}: {error}"))?;
        // A file that is not text is data.
        if let Ok(text) = String::from_utf8(bytes) {
            violations.extend(check(path, &text));
        }
    }
    for violation in &violations {
        eprintln!("{violation}");
    }
    match violations.len() {
        0 => {
            eprintln!("tidy: {} files, nothing to complain about", paths.len());
            Ok(())
        }
        count => Err(format!("tidy found {count} things to put right, listed above")),
    }
}

fn check(path: &str, text: &str) -> Vec<Violation> {
    let code = path.ends_with(".rs").then(|| code::blank(text));
    let file = File { path, text, code: code.as_deref() };
    let violation = |(line, message)| Violation { path: path.to_owned(), line, message };
    RULES.iter().flat_map(|rule| rule(&file)).map(violation).collect()
}

/// Lists files below `dir`, except build output (`target`) and files of tools (hidden folders other than our own, and
/// the file `.git` of a second working tree).
fn collect(root: &Path, dir: &str, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(dir))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let is_ours = !name.starts_with('.') || matches!(&*name, ".cargo" | ".ci" | ".github");
            if is_ours && name != "target" {
                collect(root, &path, paths)?;
            }
        } else if kind.is_file() && name != ".git" {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tidy's complaints about a file, without the path.
    pub fn complaints(path: &str, text: &str) -> Vec<String> {
        check(path, text).into_iter().map(|v| format!("{}: {}", v.line, v.message)).collect()
    }

    #[test]
    fn a_violation_is_a_place_and_a_message() {
        let found = check("meganeura/src/nn/linear.rs", "//! Doc.\n\nuse wgpu::Device;\n");
        let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["meganeura/src/nn/linear.rs:3: only meganeura-core/src/gpu may name `wgpu::`"]);
    }

    #[test]
    fn every_rule_can_fail() {
        let (long, wide) = ("\n".repeat(501), "word ".repeat(30));
        let bad = [
            ("tests/src/utils.rs", ""),
            ("tests/src/long.rs", &*long),
            ("README.md", &*wide),
            ("meganeura-core/src/tensor.rs", "use wgpu::Device;"),
            ("meganeura-core/src/tape/mod.rs", "use crate::loss::Reduction;"),
            ("meganeura-core/src/grad.rs", "use crate::ops::conv2d::Conv2d;"),
            ("meganeura-core/src/grad.rs", "fn f() { todo!() }"),
            ("meganeura-core/src/grad.rs", "#[allow(dead_code)] fn f() {}"),
            ("README.md", concat!("cd /ro", "ot/code")),
        ];
        assert_eq!(bad.len(), RULES.len());
        for (rule, (path, text)) in RULES.iter().zip(bad) {
            let code = code::blank(text);
            let file = File { path, text, code: path.ends_with(".rs").then_some(&code) };
            assert_eq!(rule(&file).len(), 1, "{path}: {text}");
        }
    }

    #[test]
    fn the_project_itself_is_listed() {
        let mut paths = Vec::new();
        collect(&root(), "", &mut paths).unwrap();
        assert!(paths.iter().any(|path| path == "xtask/src/tidy/mod.rs"));
        assert!(!paths.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
    }
}
