//! Kernels as text.

/// A kernel's text without its numeric literals. Kernels with the same rest have the same statements, and the same
/// types up to the lengths of arrays.
#[must_use]
pub fn without_numbers(wgsl: &str) -> String {
    let mut last = ' ';
    let is_kept = |&next: &char| {
        // A digit after a letter belongs to a name, such as `vec4`. The digits of a literal follow each other.
        let is_literal = next.is_ascii_digit() && !(last.is_ascii_alphanumeric() || last == '_');
        if !is_literal {
            last = next;
        }
        !is_literal
    };
    wgsl.chars().filter(is_kept).collect()
}

/// A kernel's text with empty functions.
pub(crate) fn declarations(wgsl: &str) -> String {
    let mut declarations = String::with_capacity(wgsl.len() / 4);
    let (mut depth, mut is_function) = (0, false);
    for line in wgsl.lines() {
        let line = line.split_once("//").map_or(line, |(code, _)| code);
        is_function |= depth == 0 && (line.starts_with("fn ") || line.contains(" fn "));
        for next in line.chars() {
            depth -= i32::from(next == '}');
            if depth == 0 || !is_function {
                declarations.push(next);
            }
            is_function &= depth > 0 || next != '}';
            depth += i32::from(next == '{');
        }
        declarations.push('\n');
    }
    declarations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literals_are_left_out() {
        assert_eq!(without_numbers("let b_1 = vec4(1.5e-3, 20u, 0x7f) + x[16];"), "let b_1 = vec4(.e-, u, x7f) + x[];");
    }

    #[test]
    fn functions_are_emptied() {
        let text =
            "struct Pair { a: f32, b: f32 } // {\n@compute @workgroup_size(4) fn main() {\n  { f(); }\n}\nconst A = 1;";
        let expected = "struct Pair { a: f32, b: f32 } \n@compute @workgroup_size(4) fn main() {\n\n}\nconst A = 1;\n";
        assert_eq!(declarations(text), expected);
    }
}
