//! Scans the framework's sources for public functions that can fail.

use std::path::Path;
use std::{fs, io};

/// A public function, or a method of a public trait, that returns the framework's error.
pub(super) struct Fallible {
    /// `file::function`.
    pub(super) name: String,
    pub(super) is_tracked: bool,
    /// `true` if only the framework calls it.
    pub(super) is_hidden: bool,
    pub(super) body: String,
}

/// Finds the functions of a source file by their indentation, which rustfmt keeps.
fn fallible(file: &str, text: &str) -> Vec<Fallible> {
    let lines: Vec<&str> = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().collect();
    let mut found = Vec::new();
    let mut in_public_trait = false;
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if indent == 0 && !code.is_empty() && !code.starts_with(['}', '#', '/']) {
            in_public_trait = code.starts_with("pub trait ");
        }
        let signature = match code.strip_prefix("pub ") {
            Some(rest) => rest,
            None if in_public_trait && indent == 4 => code,
            // Implementations of a standard trait.
            None if code.starts_with("fn from_str(") => code,
            None => continue,
        };
        let signature = signature.strip_prefix("async ").unwrap_or(signature);
        let Some(rest) = signature.strip_prefix("fn ") else { continue };
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        // A signature ends with the line that opens the body, or with a declaration's semicolon.
        let end = (index..lines.len()).find(|&end| lines[end].ends_with(['{', ';'])).unwrap_or(index);
        let signature = lines[index..=end].join(" ");
        let Some((_, returned)) = signature.rsplit_once(") -> ") else { continue };
        const OURS: [&str; 5] = [
            "Result<",
            "crate::Result<",
            "impl Future<Output = Result<",
            "Pin<Box<dyn Future<Output = Result<",
            "Option<Result<",
        ];
        let is_ours = OURS.into_iter().any(|start| returned.starts_with(start)) && !returned.contains(", String>");
        if !is_ours {
            continue;
        }
        let above = lines[..index].iter().rev().map(|line| line.trim_start());
        let above: Vec<_> = above.take_while(|line| line.starts_with("#[") || line.starts_with("///")).collect();
        let close = format!("{}}}", " ".repeat(indent));
        let last = (end..lines.len()).find(|&last| lines[last] == close).unwrap_or(end);
        found.push(Fallible {
            name: format!("{file}::{name}"),
            is_tracked: above.contains(&"#[track_caller]") && !code.starts_with("pub async "),
            is_hidden: above.contains(&"#[doc(hidden)]"),
            body: lines[end..=last].join("\n"),
        });
    }
    found
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{prefix}{name}/"), files)?;
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push((format!("{prefix}{name}"), fs::read_to_string(entry.path())?));
        }
    }
    Ok(())
}

/// All fallible functions, in the order of the files.
pub(super) fn fallible_functions() -> io::Result<Vec<Fallible>> {
    let mut files = Vec::new();
    for sources in ["../meganeura-core/src", "../meganeura/src"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(sources), "", &mut files)?;
    }
    Ok(files.iter().flat_map(|(file, text)| fallible(file, text)).collect())
}
