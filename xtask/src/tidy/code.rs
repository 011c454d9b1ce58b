//! Just enough of Rust's grammar to distinguish code from comments and literals, and to read paths.

use std::iter;

/// The text with comments and the contents of string and character literals replaced by spaces. Newlines stay.
pub fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (len, keep) = token(&chars[at..], at.checked_sub(1).map(|before| chars[before]));
        for &c in &chars[at..at + len] {
            out.push(if keep || c == '\n' { c } else { ' ' });
        }
        at += len;
    }
    out
}

/// The length of the comment, literal or single character that `rest` starts with, and whether it is code.
fn token(rest: &[char], before: Option<char>) -> (usize, bool) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let until = |end: &dyn Fn(usize) -> bool| (1..rest.len()).find(|&i| end(i)).unwrap_or(rest.len());
    match rest {
        ['/', '/', ..] => (until(&|i| rest[i] == '\n'), false),
        ['/', '*', ..] => (block_comment(rest), false),
        ['"', ..] => (string(rest), false),
        ['r', '"' | '#', ..] | ['b' | 'c', 'r', '"' | '#', ..] if !before.is_some_and(is_word) => {
            raw_string(rest).map_or((1, true), |len| (len, false))
        }
        // A quote begins a character literal if another quote closes it after one character or an escape; otherwise it
        // begins a lifetime.
        ['\'', '\\', ..] => (until(&|i| i > 2 && rest[i] == '\'').saturating_add(1).min(rest.len()), false),
        ['\'', _, '\'', ..] => (3, false),
        _ => (1, true),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `None` if this is a raw identifier, not a string.
fn raw_string(rest: &[char]) -> Option<usize> {
    let start = rest.iter().position(|&c| c == 'r')? + 1;
    let hashes = rest[start..].iter().take_while(|&&c| c == '#').count();
    if rest.get(start + hashes) != Some(&'"') {
        return None;
    }
    let end: Vec<char> = iter::once('"').chain(iter::repeat_n('#', hashes)).collect();
    let body = start + hashes + 1;
    let len = rest[body..].windows(end.len()).position(|window| window == end);
    Some(len.map_or(rest.len(), |len| body + len + end.len()))
}

/// Every path that begins with `crate::`, with its line: `use crate::{nn, ops::conv2d::X}` is `nn` and
/// `ops::conv2d::X`.
pub fn crate_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            let line = code[..at].matches('\n').count() + 1;
            path(&code[at + "crate::".len()..], line, "", &mut paths);
        }
    }
    paths
}

/// Reads a path or a group of paths after `prefix`. Returns the rest.
fn path<'a>(mut rest: &'a str, mut line: usize, prefix: &str, paths: &mut Vec<(usize, String)>) -> &'a str {
    let mut own = prefix.to_owned();
    loop {
        if let Some(mut group) = rest.strip_prefix('{') {
            loop {
                let trimmed = group.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                line += group[..group.len() - trimmed.len()].matches('\n').count();
                if trimmed.is_empty() {
                    return trimmed;
                }
                if let Some(after) = trimmed.strip_prefix('}') {
                    return after;
                }
                let after = path(trimmed, line, &own, paths);
                // Invalid syntax is skipped, so that reading always advances.
                let after = if after.len() == trimmed.len() { skip_one(after) } else { after };
                line += trimmed[..trimmed.len() - after.len()].matches('\n').count();
                group = after;
            }
        }
        let word = rest.len() - rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').len();
        own.push_str(&rest[..word]);
        rest = &rest[word..];
        match rest.strip_prefix("::") {
            Some(after) if word > 0 => {
                own.push_str("::");
                rest = after;
            }
            _ => break,
        }
    }
    if own != prefix {
        paths.push((line, own));
    }
    // `as name` belongs to this path.
    match rest.trim_start().strip_prefix("as ") {
        Some(name) if !prefix.is_empty() || rest.starts_with(' ') => {
            name.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_' || c == ' ')
        }
        _ => rest,
    }
}

fn skip_one(text: &str) -> &str {
    let mut chars = text.chars();
    chars.next();
    chars.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        for (text, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("a\"b", c)"#, r#"f(      , c)"#),
            ("f(r#\"a\"b\"#, c)", "f(        , c)"),
            ("br\"\\\" + c", "      + c"),
            ("r#type + 1", "r#type + 1"),
            ("'a' + '\\'' + '\\u{1F}' + 'l", "    +      +          + 'l"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("\"two\nlines\" x", "    \n       x"),
            ("/* open", "       "),
            ("\"open", "     "),
        ] {
            assert_eq!(blank(text), code, "{text}");
        }
    }

    fn paths(code: &str) -> Vec<(usize, String)> {
        crate_paths(code)
    }

    #[test]
    fn paths_are_read_wherever_they_stand() {
        assert_eq!(paths("use crate::nn::Linear;"), [(1, "nn::Linear".into())]);
        assert_eq!(paths("\npub(crate) fn f(x: &crate::gpu::Buffer) {}"), [(2, "gpu::Buffer".into())]);
        assert_eq!(paths("use my_crate::nn;"), []);
    }

    #[test]
    fn groups_are_taken_apart() {
        let code =
            "use crate::{\n    DType, cpu::{self, Real as R},\n    ops::conv2d::*,\n    gpu,\n};\nuse crate::tape;";
        let expected =
            [(2, "DType"), (2, "cpu::self"), (2, "cpu::Real"), (3, "ops::conv2d::"), (4, "gpu"), (6, "tape")];
        assert_eq!(paths(code), expected.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn nonsense_ends() {
        for code in ["crate::{", "crate::{{}}", "crate::{a b ! c}", "crate::", "crate::{a::{b}, ]"] {
            paths(code);
        }
    }
}
