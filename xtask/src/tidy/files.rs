//! Rules on files as such: what they are called and how long they are.

use std::path::Path;

use super::File;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = ["base", "common", "helper", "helpers", "misc", "util", "utils", "stuff"];

/// Past this, a file has a second idea in it.
const MAX_LINES: usize = 500;

pub fn has_a_name_of_its_own(file: &File<'_>) -> Vec<(usize, String)> {
    let stems = Path::new(file.path).iter().filter_map(|part| Path::new(part).file_stem()?.to_str());
    let empty = stems.filter(|stem| EMPTY_NAMES.contains(stem));
    empty.map(|stem| (1, format!("`{stem}` says nothing: name the file after the idea in it"))).collect()
}

pub fn is_short(file: &File<'_>) -> Vec<(usize, String)> {
    let lines = file.text.lines().count();
    let is_code = file.path.ends_with(".rs") || file.path.ends_with(".wgsl");
    if !is_code || lines <= MAX_LINES {
        return Vec::new();
    }
    vec![(MAX_LINES + 1, format!("{lines} lines, at most {MAX_LINES}: give the second idea a file of its own"))]
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::complaints;

    #[test]
    fn folders_have_names_too() {
        assert_eq!(complaints("tests/src/common/mod.rs", "").len(), 1);
        assert_eq!(complaints("shaders/wgsl/utils.wgsl", "").len(), 1);
        assert!(complaints("tests/src/uncommon.rs", "").is_empty());
    }

    #[test]
    fn five_hundred_lines_are_the_limit() {
        assert!(complaints("meganeura/src/tensor.rs", &"\n".repeat(500)).is_empty());
        assert_eq!(complaints("meganeura/src/tensor.rs", &"\n".repeat(501)).len(), 1);
        assert_eq!(complaints("shaders/wgsl/conv2d.wgsl", &"\n".repeat(501)).len(), 1);
        assert!(complaints("CHANGELOG.md", &"\n".repeat(501)).is_empty());
    }
}
