//! Graphs in Graphviz's language, for drawing with `dot -Tsvg graph.dot > graph.svg`.

use std::fmt::{self, Write};

/// A drawing under construction: boxes and arrows.
pub(crate) struct Dot {
    text: String,
}

/// The look of a box.
#[derive(Clone, Copy)]
pub(crate) enum Look {
    /// A tensor of the caller: an operand or a result.
    Data,
    /// A computation.
    Work,
    /// A view or a number, which costs nothing.
    Minor,
}

impl Dot {
    pub(crate) fn new(name: &str) -> Self {
        let text = format!(
            "digraph \"{}\" {{\n  node [fontname=\"monospace\", fontsize=10, style=filled, shape=box];\n  \
             edge [fontname=\"monospace\", fontsize=9];\n",
            Escaped(name)
        );
        Self { text }
    }

    /// A box with these lines.
    pub(crate) fn node(&mut self, id: &str, look: Look, lines: &[String]) {
        let label = lines.iter().map(|line| Escaped(line).to_string()).collect::<Vec<_>>().join("\\n");
        let style = match look {
            Look::Data => "shape=ellipse, fillcolor=\"#e8f0d8\"",
            Look::Work => "fillcolor=\"#dde8f5\"",
            Look::Minor => "fillcolor=\"#f4f4f4\", color=\"#999999\"",
        };
        self.write(format_args!("  {id} [label=\"{label}\", {style}];\n"));
    }

    /// An arrow with a label.
    pub(crate) fn edge(&mut self, from: &str, to: &str, label: &str) {
        match label {
            "" => self.write(format_args!("  {from} -> {to};\n")),
            label => self.write(format_args!("  {from} -> {to} [label=\"{}\"];\n", Escaped(label))),
        }
    }

    pub(crate) fn finish(mut self) -> String {
        self.text.push_str("}\n");
        self.text
    }

    fn write(&mut self, line: fmt::Arguments<'_>) {
        self.text.write_fmt(line).expect("a String takes everything");
    }
}

/// Text inside quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let mut dot = Dot::new("a \"b\"");
        dot.node("n0", Look::Data, &["say \"hi\"".to_owned(), "C:\\x".to_owned()]);
        dot.edge("n0", "n0", "1 B");
        let text = dot.finish();
        assert!(text.starts_with("digraph \"a \\\"b\\\"\" {\n"), "{text}");
        assert!(text.contains(r#"n0 [label="say \"hi\"\nC:\\x", shape=ellipse"#), "{text}");
        assert!(text.ends_with("  n0 -> n0 [label=\"1 B\"];\n}\n"), "{text}");
    }
}
