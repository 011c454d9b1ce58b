//! `cargo xtask surface`: the public surface of each published crate, compared with a list in the repository.
//!
//! The list is what rustdoc documents with the features of docs.rs: items with their fields, variants and attributes,
//! methods, trait implementations, re-exports. A parser of the sources would miss methods that macros write, and `Var`
//! has a hundred of those. rustdoc's JSON needs a nightly toolchain. Its HTML does not, and marks the parts of an item
//! by classes.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, mem};

use clap::Args;

use crate::Done;
use crate::process::{self, cargo, root, target};
use crate::publish::{CORE, PUBLISHED};

/// Compares the lists, or writes them on request.
#[derive(Args, Debug, Default)]
pub struct Options {
    /// Write the lists anew; read the diff before you commit it
    #[arg(long)]
    bless: bool,
}

/// The list's file in the folder of its crate.
const LIST: &str = "public-api.txt";

pub fn check() -> Done {
    run(&Options::default())
}

pub fn run(options: &Options) -> Done {
    let mut changed = Vec::new();
    // The core's surface is that of the crate above.
    for (folder, name) in PUBLISHED.into_iter().filter(|(_, name)| *name != CORE) {
        let path = root().join(folder).join(LIST);
        let found = document(folder, name)?;
        if options.bless {
            fs::write(&path, &found).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let listed = fs::read_to_string(&path).unwrap_or_default();
        changed.extend(differences(&listed, &found).into_iter().map(|line| format!("{name}: {line}")));
    }
    if changed.is_empty() {
        return Ok(());
    }
    changed.iter().for_each(|line| eprintln!("{line}"));
    Err("the public surface changed, as listed above; `cargo xtask surface --bless` if that is meant".into())
}

/// Documents a crate with rustdoc, and lists what its pages show.
fn document(folder: &str, name: &str) -> Result<String, String> {
    let pages = target().join("doc").join(name.replace('-', "_"));
    // Otherwise, pages of removed items and of other features would stay.
    if pages.exists() {
        fs::remove_dir_all(&pages).map_err(|error| format!("{}: {error}", pages.display()))?;
    }
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).map_err(|error| error.to_string())?;
    let features = features(&manifest).join(",");
    process::run(cargo().args(["doc", "--no-deps", "--package", name, "--features", &features]))?;

    let mut sections = Vec::new();
    collect(&pages, "", &mut sections).map_err(|error| format!("{}: {error}", pages.display()))?;
    if sections.is_empty() {
        return Err(format!("{}: no page is as rustdoc wrote them before; `surface.rs` reads them", pages.display()));
    }
    sections.sort();
    Ok(sections.concat())
}

/// The features that docs.rs builds, according to the manifest.
fn features(manifest: &str) -> Vec<&str> {
    let metadata = manifest.split("[package.metadata.docs.rs]").nth(1).unwrap_or_default();
    let line = metadata.lines().find(|line| line.starts_with("features = ")).unwrap_or_default();
    line.split('"').skip(1).step_by(2).collect()
}

/// Collects what each page below a folder shows, under the page's place: `nn::struct.Linear`.
fn collect(folder: &Path, place: &str, sections: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.is_dir() {
            collect(&path, &format!("{place}{name}::"), sections)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let lines = page(&fs::read_to_string(&path)?);
            if !lines.is_empty() {
                sections.push(format!(
                    "{place}{name}\n{}",
                    lines.iter().map(|line| format!("    {line}\n")).collect::<String>()
                ));
            }
        }
    }
    Ok(())
}

/// The contents of a page: the declaration as it is, then methods, implementations and re-exports in alphabetical
/// order, because their order in the sources does not matter.
fn page(html: &str) -> Vec<String> {
    let declaration = between(html, "<pre class=\"rust item-decl\"><code>", "</code></pre>").into_iter().next();
    let mut lines = members(declaration.unwrap_or_default());

    let mut rest = BTreeSet::new();
    // A section starts with a heading that has its name.
    for section in html.split("<h2 id=\"").skip(1) {
        let parts: &[(&str, &str)] = match section.split('"').next() {
            Some("implementations") => {
                &[("<h3 class=\"code-header\">", "</h3>"), ("<h4 class=\"code-header\">", "</h4>")]
            }
            // Only headings: the methods are the trait's.
            Some("trait-implementations" | "foreign-impls") => &[("<h3 class=\"code-header\">", "</h3>")],
            Some("reexports") => &[("<code>", "</code>")],
            _ => &[],
        };
        rest.extend(parts.iter().flat_map(|(open, close)| between(section, open, close)).map(text));
    }
    // A marker that `#[derive(PartialEq)]` leaves for the compiler.
    rest.retain(|line| !line.starts_with("impl StructuralPartialEq"));
    lines.extend(rest);
    lines
}

/// The lines of a declaration, with each field, variant and method on one line.
fn members(declaration: &str) -> Vec<String> {
    let (mut members, mut open, mut is_inside) = (Vec::new(), String::new(), false);
    for line in declaration.split('\n').map(text).filter(|line| !line.is_empty() && !line.starts_with("//")) {
        open = [open, line].join(" ").trim_start().to_owned();
        let is_closed = |on, off| open.matches(on).count() <= open.matches(off).count();
        // The declaration's own brace closes on a separate line.
        let is_head = !is_inside && open.ends_with('{');
        if is_head || is_closed('(', ')') && is_closed('{', '}') {
            is_inside |= is_head;
            members.push(mem::take(&mut open));
        }
    }
    members.extend(Some(open).filter(|open| !open.is_empty()));
    members
}

/// All parts of a text between two marks.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    text.split(open).skip(1).filter_map(|rest| rest.split_once(close)).map(|(part, _)| part).collect()
}

/// The visible text of HTML, on one line.
fn text(html: &str) -> String {
    let (mut text, mut rest) = (String::new(), html);
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        // A summary such as `Show 13 fields` is not part of the item.
        let end = if tag.starts_with("summary") { "</summary>" } else { ">" };
        rest = tag.split_once(end).map_or("", |(_, after)| after);
        // Attributes and bounds are on separate lines, in block elements.
        if tag.starts_with("div") || tag.starts_with("/div") || tag.starts_with("br") {
            text.push(' ');
        }
    }
    text.push_str(rest);
    for (code, character) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("ⓘ", ""), ("&amp;", "&")]
    {
        text = text.replace(code, character);
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The lines that one list has and the other lacks, with their sections.
fn differences(listed: &str, found: &str) -> Vec<String> {
    let (listed, found) = (named(listed), named(found));
    let gone = listed.difference(&found).map(|line| format!("- {line}"));
    gone.chain(found.difference(&listed).map(|line| format!("+ {line}"))).collect()
}

/// Each line of a list behind the name of its section.
fn named(list: &str) -> BTreeSet<String> {
    let mut section = "";
    let mut lines = BTreeSet::new();
    for line in list.lines() {
        match line.strip_prefix("    ") {
            Some(part) => _ = lines.insert(format!("{section}: {part}")),
            None => section = line,
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of rustdoc 1.95, without the parts that are ignored here.
    const PAGE: &str = r##"<pre class="rust item-decl"><code><div class="code-attribute">#[non_exhaustive]</div>pub enum Cut&lt;T&gt; {
    Whole(<a class="struct" href="struct.Shape.html" title="struct a::Shape">Shape</a>),
    Parts {
        at: usize,
    },
    // some variants omitted
}</code></pre><details class="toggle top-doc" open><h2 id="examples">Examples</h2><h3 class="code-header">prose</h3></details>
<h2 id="implementations" class="section-header">Implementations</h2><div id="implementations-list">
<h3 class="code-header">impl&lt;T&gt; <a href="#">Cut</a>&lt;T&gt;</h3>
<h4 class="code-header">pub fn <a href="#method.parts" class="fn">parts</a>(
    &amp;self,
) -&gt; usize<div class="where">where T: Copy,</div></h4>
<h4 class="code-header">pub fn <a href="#method.len" class="fn">len</a>(&amp;self) -&gt; usize</h4></div>
<h2 id="trait-implementations" class="section-header">Trait Implementations</h2>
<h3 class="code-header">impl <a class="trait" href="#">Clone</a> for Cut</h3><h4 class="code-header">fn clone(&amp;self) -&gt; Self</h4>
<h2 id="synthetic-implementations" class="section-header"></h2><h3 class="code-header">impl Send for Cut</h3>
<h2 id="reexports" class="section-header"></h2><dt id="reexport.Shape"><code>pub use crate::<a href="#">Shape</a>;</code></dt>"##;

    #[test]
    fn a_page_gives_a_declaration_and_its_members() {
        let lines = [
            "#[non_exhaustive] pub enum Cut<T> {",
            "Whole(Shape),",
            "Parts { at: usize, },",
            "}",
            "impl Clone for Cut",
            "impl<T> Cut<T>",
            "pub fn len(&self) -> usize",
            "pub fn parts( &self, ) -> usize where T: Copy,",
            "pub use crate::Shape;",
        ];
        assert_eq!(page(PAGE), lines);
        assert_eq!(page("<p>Redirecting to <a href=\"x\">x</a>...</p>"), [""; 0]);
    }

    #[test]
    fn every_change_is_a_difference() {
        let list = |html: &str| {
            format!("enum.Cut\n{}", page(html).iter().map(|line| format!("    {line}\n")).collect::<String>())
        };
        assert_eq!(differences(&list(PAGE), &list(PAGE)), [""; 0]);
        for (part, other) in [
            ("#[non_exhaustive]", ""),
            ("Whole(", "All("),
            ("at: usize", "at: u32"),
            (">Clone<", ">Copy<"),
            (">len<", ">count<"),
            ("T: Copy", "T: Clone"),
            (">Shape</a>;", ">Layout</a>;"),
        ] {
            let found = differences(&list(PAGE), &list(&PAGE.replace(part, other)));
            assert_eq!(found.len(), 2, "{part}: {found:?}");
        }
        assert_eq!(differences("enum.Cut\n    }\nfn.cut\n    }\n", "enum.Cut\n    }\n"), ["- fn.cut: }"]);
    }

    #[test]
    fn features_are_those_of_docs_rs() {
        let manifest =
            "[features]\nfeatures = [\"no\"]\n[package.metadata.docs.rs]\nfeatures = [\"a\", \"b\"]\n[lints]\n";
        assert_eq!(features(manifest), ["a", "b"]);
        assert_eq!(features("[features]\n"), [""; 0]);
    }
}
