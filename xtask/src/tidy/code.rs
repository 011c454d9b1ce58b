//! Just enough of Rust's grammar to distinguish code from comments and literals, and to read paths.

use std::collections::HashMap;
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

/// The code without test-only items: items under `#[cfg(test)]` are replaced by spaces. Newlines stay.
pub fn without_tests(code: &str) -> String {
    const TEST: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(TEST) {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let len = item_len(item);
        out.extend(item[..len].chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &item[len..];
    }
    out + rest
}

/// The bytes of an item with its attributes: up to its closing brace, or to a semicolon outside of braces.
fn item_len(item: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in item.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    // `use` has a semicolon after its braces.
                    let end = &item[at + 1..];
                    return at + 1 + usize::from(end.starts_with(';'));
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

/// A path below the root of a crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    pub line: usize,
    pub path: String,
    /// The name after `as`.
    pub rename: Option<String>,
}

/// Every path that begins with `crate::`: `use crate::{nn, ops::conv2d::X}` is `nn` and `ops::conv2d::X`. In a module
/// `depth` levels below the root, so is a path that begins with `depth` times `super::`.
pub fn crate_paths(code: &str, depth: usize) -> Vec<Named> {
    let supers = "super::".repeat(depth);
    let starts = ["crate::", &supers].into_iter().filter(|start| !start.is_empty());
    let mut paths = Vec::new();
    for (start, at) in starts.flat_map(|start| code.match_indices(start).map(move |(at, _)| (start, at))) {
        let is_inside = code[..at].ends_with(|c: char| is_word(c) || c == ':');
        let rest = &code[at + start.len()..];
        if !is_inside && !rest.starts_with("super::") {
            path(rest, code[..at].matches('\n').count() + 1, "", &mut paths);
        }
    }
    paths.sort_by_key(|named| named.line);
    paths
}

/// The paths that a file re-exports outside of inner modules, by their re-exported names.
pub fn reexports(code: &str) -> HashMap<String, String> {
    let mut paths = Vec::new();
    for statement in statements(code) {
        match statement.split_once("use ") {
            Some((visibility, tree)) if visibility.contains("pub") => {
                path(tree.trim(), 1, "", &mut paths);
            }
            _ => {}
        }
    }
    let name = |Named { path, rename, .. }| {
        let own = path.rsplit("::").find(|&segment| segment != "self").unwrap_or_default().to_owned();
        (rename.unwrap_or(own), path)
    };
    paths.into_iter().map(name).collect()
}

/// The `use` statements outside of blocks.
fn statements(code: &str) -> Vec<&str> {
    let (mut found, mut begin, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, c) in code.char_indices() {
        let statement = &code[begin..=at];
        let is_use = statement.split('{').next().is_some_and(|head| head.split_whitespace().any(|word| word == "use"));
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match c {
            ';' if depth == 0 && is_use => found.push(statement.trim_end_matches(';')),
            ';' if depth == 0 => {}
            '}' if depth == 0 && !is_use => {}
            _ => continue,
        }
        begin = at + 1;
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads a path, or a group of paths, that follows `prefix`. Returns the rest of the code.
fn path<'a>(mut rest: &'a str, mut line: usize, prefix: &str, paths: &mut Vec<Named>) -> &'a str {
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
        let word = rest.len() - rest.trim_start_matches(is_word).len();
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
    // `as name` belongs to this path.
    let renamed = rest.trim_start().strip_prefix("as ").filter(|_| !prefix.is_empty() || rest.starts_with(' '));
    let (rename, after) = match renamed {
        Some(name) => {
            let name = name.trim_start();
            let after = name.trim_start_matches(is_word);
            (Some(name[..name.len() - after.len()].to_owned()), after)
        }
        None => (None, rest),
    };
    if own != prefix {
        paths.push(Named { line, path: own, rename });
    }
    after
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
        crate_paths(code, 2).into_iter().map(|named| (named.line, named.path)).collect()
    }

    #[test]
    fn test_only_items_are_left_out() {
        for (code, rest) in [
            ("a;\n#[cfg(test)]\nmod tests {\n{}}\nb", "a;\n\n\n\nb"),
            ("#[cfg(test)]\n#[path = x]\nmod tests;\nb", "\n\n\nb"),
            ("#[cfg(test)] use a::{b, c}; d", "d"),
            ("#[cfg(test)]\nlet x = [1; 2]; d", "\nd"),
            ("#[cfg(test)", "#[cfg(test)"),
            ("#[cfg(test)] {", ""),
            ("#[cfg(not(test))] a", "#[cfg(not(test))] a"),
        ] {
            assert_eq!(without_tests(code).replace(' ', ""), rest.replace(' ', ""), "{code}");
        }
    }

    #[test]
    fn enough_supers_are_the_root() {
        assert_eq!(paths("use super::super::{nn, gpu::X};"), [(1, "nn".into()), (1, "gpu::X".into())]);
        assert_eq!(paths("use super::nn; use super::super::super::x; my_super::super::y"), []);
        assert_eq!(crate_paths("super::gpu::X", 1)[0].path, "gpu::X");
        assert_eq!(crate_paths("super::gpu::X", 0), []);
    }

    #[test]
    fn reexports_are_read() {
        let code = "mod tape;\n\
            #[cfg(feature = a)]\npub use tape::{Tape, run::Runs as Other};\n\
            pub(crate) use kept::{self, X as Y};\n\
            use private::Z;\n\
            pub mod inner {\n pub use deep::Hidden;\n}\n\
            fn f() { x; }\npub use last::End;";
        let expected = [
            ("Tape", "tape::Tape"),
            ("Other", "tape::run::Runs"),
            ("kept", "kept::self"),
            ("Y", "kept::X"),
            ("End", "last::End"),
        ];
        assert_eq!(reexports(code), expected.map(|(name, path)| (name.into(), path.into())).into());
    }

    #[test]
    fn paths_are_read_everywhere() {
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
    fn invalid_syntax_ends_the_scan() {
        for code in ["crate::{", "crate::{{}}", "crate::{a b ! c}", "crate::", "crate::{a::{b}, ]"] {
            paths(code);
            reexports(&format!("pub use {code}"));
            without_tests(&format!("#[cfg(test)]{code}"));
        }
    }
}
