//! Rules on files: their names, their lengths, and the width of their prose.

use std::path::Path;

use super::File;

/// Names that say nothing about the contents.
const EMPTY_NAMES: [&str; 8] = ["base", "common", "helper", "helpers", "misc", "util", "utils", "stuff"];

/// A longer file contains a second idea.
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

/// The width of comments and code.
const WIDTH_OF_COMMENTS: usize = 120;

/// The width of prose in Markdown.
const WIDTH_OF_PROSE: usize = 100;

/// Comments and prose wrap. Tables, headings, code and lines of one word do not.
pub fn is_narrow(file: &File<'_>) -> Vec<(usize, String)> {
    let is_prose = file.path.ends_with(".md");
    let width = if is_prose { WIDTH_OF_PROSE } else { WIDTH_OF_COMMENTS };
    if !is_prose && !file.path.ends_with(".rs") && !file.path.ends_with(".wgsl") {
        return Vec::new();
    }
    let (mut fenced, mut wide) = (false, Vec::new());
    for (index, line) in file.text.lines().enumerate() {
        let text = if is_prose { Some(line.trim_start()) } else { comment(line) };
        let Some(text) = text else {
            fenced = false;
            continue;
        };
        fenced ^= text.starts_with("```");
        let wraps = !fenced && !text.starts_with(['|', '#', '<']) && words(text) > 1;
        let columns = line.chars().count();
        if wraps && columns > width {
            wide.push((index + 1, format!("{columns} columns, at most {width}: wrap the line")));
        }
    }
    wide
}

/// The text of a line that is only a comment.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim_start())
}

/// The number of words between which a line can wrap. Spaces in code and in link texts do not count.
fn words(text: &str) -> usize {
    let (mut words, mut code, mut link, mut inside) = (0, false, 0_usize, false);
    for c in text.chars() {
        code ^= c == '`';
        match c {
            '[' if !code => link += 1,
            ']' if !code => link = link.saturating_sub(1),
            _ => {}
        }
        let is_gap = c == ' ' && !code && link == 0;
        words += usize::from(!is_gap && !inside);
        inside = !is_gap;
    }
    // A list marker does not count.
    words - usize::from(text.starts_with(['*', '-', '+']) && words > 0)
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

    #[test]
    fn prose_and_comments_wrap() {
        let wide = |columns: usize| format!("a {}", "b".repeat(columns - 2));
        assert!(complaints("README.md", &wide(100)).is_empty());
        assert_eq!(complaints("README.md", &wide(101)).len(), 1);
        assert_eq!(complaints("README.md", &format!("text\n* {}", wide(110))).len(), 1);
        for whole in [format!("| {} |", wide(200)), format!("```\n{}\n```", wide(200)), "b".repeat(200)] {
            assert!(complaints("README.md", &whole).is_empty(), "{whole}");
        }
        assert!(complaints("README.md", &format!("* [{}](x)", wide(200))).is_empty());
        assert_eq!(complaints("xtask/src/main.rs", &format!("    /// {}", wide(113))).len(), 1);
        assert!(complaints("xtask/src/main.rs", &format!("    /// {}", wide(112))).is_empty());
        assert!(complaints("xtask/src/main.rs", &format!("/// ```text\n/// {}\n/// ```", wide(200))).is_empty());
    }
}
