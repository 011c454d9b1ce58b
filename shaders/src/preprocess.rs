//! Expands includes, conditions, loops, macros and holes. Knows neither WGSL nor which files there are.

use std::borrow::Cow;

pub use error::{ExpandError, Location};

mod error;

/// Expands `kernel`; `source` gives the text of a file by its name.
///
/// # Errors
///
/// Fails like [`expand`](crate::expand).
pub fn expand<'s>(
    source: impl Fn(&str) -> Option<&'s str>,
    kernel: &str,
    defines: &[(&str, &str)],
) -> Result<String, ExpandError> {
    let text = source(kernel).ok_or_else(|| ExpandError::UnknownKernel { kernel: kernel.to_owned() })?;
    let mut expansion = Expansion {
        source,
        defines: Defines::new(defines)?,
        seen: vec![kernel.to_owned()],
        macros: Vec::new(),
        inside: Vec::new(),
        wgsl: String::with_capacity(2 * text.len()),
    };
    expansion.file(kernel, text)?;
    match expansion.defines.unused() {
        Some(name) => Err(ExpandError::Unused { kernel: kernel.to_owned(), name: name.to_owned() }),
        None => Ok(expansion.wgsl),
    }
}

/// A line of a file, for error messages.
#[derive(Clone, Copy)]
struct Line<'f> {
    file: &'f str,
    number: usize,
}

impl Line<'_> {
    fn location(self) -> Location {
        Location { file: self.file.to_owned(), line: self.number }
    }
}

struct Expansion<'d, F> {
    source: F,
    defines: Defines<'d>,
    /// The files that have been included.
    seen: Vec<String>,
    /// The macros defined so far.
    macros: Vec<Macro>,
    /// The names of the macros around the current line, the innermost last.
    inside: Vec<String>,
    wgsl: String,
}

/// Lines between `#macro NAME(PARAMETERS)` and `#endmacro`.
#[derive(Clone)]
struct Macro {
    name: String,
    parameters: Vec<String>,
    file: String,
    /// The number of the first line in the file.
    first: usize,
    body: Vec<String>,
}

/// An `#if` whose `#endif` has not come yet.
struct Condition {
    at: Location,
    /// `true` if this condition keeps the lines of the current part.
    holds: bool,
    /// `true` if it keeps those of this part or of an earlier one.
    is_met: bool,
    in_else: bool,
}

impl<'s, F: Fn(&str) -> Option<&'s str>> Expansion<'_, F> {
    fn file(&mut self, file: &str, text: &str) -> Result<(), ExpandError> {
        let lines: Vec<_> = text.lines().collect();
        self.lines(file, 1, &lines, true)
    }

    /// Expands lines of a file, of which the first has number `first`. If not `wanted`, they only mention their names.
    fn lines(&mut self, file: &str, first: usize, lines: &[&str], wanted: bool) -> Result<(), ExpandError> {
        let mut conditions: Vec<Condition> = Vec::new();
        let mut index = 0;
        while let Some(&line) = lines.get(index) {
            let at = Line { file, number: first + index };
            index += 1;
            let active = wanted && conditions.iter().all(|condition| condition.holds);
            let Some((directive, rest)) = directive(line) else {
                self.text(line, active, at)?;
                continue;
            };
            match (directive, rest) {
                ("#include", name) => {
                    let name = unquote(name).ok_or_else(|| malformed(at, line))?;
                    if active {
                        self.include(name, at)?;
                    }
                }
                ("#macro", signature) => {
                    let (name, parameters) = call(signature).ok_or_else(|| malformed(at, line))?;
                    let Some(length) = body_of(&lines[index..], "#macro", "#endmacro") else {
                        return Err(ExpandError::Unbalanced { at: at.location(), directive: directive.to_owned() });
                    };
                    self.define(name, &parameters, &lines[index..index + length], active, at)?;
                    index += length + 1;
                }
                ("#insert", signature) => {
                    let (name, arguments) = call(signature).ok_or_else(|| malformed(at, line))?;
                    let arguments = arguments.iter().map(|argument| self.argument(argument)).collect();
                    if active {
                        self.insert(name, arguments, at)?.ok_or_else(|| malformed(at, line))?;
                    }
                }
                ("#if" | "#elif", _) | ("#else" | "#endif", "") => {
                    self.select(&mut conditions, (directive, rest), wanted, at, line)?;
                }
                ("#for", range) => {
                    let (name, count) = self.range(range, active, at).ok_or_else(|| malformed(at, line))??;
                    let Some(length) = body_of(&lines[index..], "#for", "#endfor") else {
                        return Err(ExpandError::Unbalanced { at: at.location(), directive: directive.to_owned() });
                    };
                    let body = &lines[index..index + length];
                    // A body that is repeated no times mentions its names as well.
                    for value in 0..count.max(1) {
                        self.defines.counters.push((name.to_owned(), value.to_string()));
                        self.lines(file, first + index, body, active && value < count)?;
                        self.defines.counters.pop();
                    }
                    index += length + 1;
                }
                ("#endfor" | "#endmacro", "") => {
                    return Err(ExpandError::Unbalanced { at: at.location(), directive: directive.to_owned() });
                }
                _ => return Err(malformed(at, line)),
            }
        }
        match conditions.pop() {
            Some(Condition { at, .. }) => Err(ExpandError::Unbalanced { at, directive: "#if".to_owned() }),
            None => Ok(()),
        }
    }

    /// Follows the conditions over an `#if`, `#elif`, `#else` or `#endif`.
    fn select(
        &mut self,
        conditions: &mut Vec<Condition>,
        (directive, rest): (&str, &str),
        wanted: bool,
        at: Line<'_>,
        line: &str,
    ) -> Result<(), ExpandError> {
        let mut condition = match directive {
            "#if" => Condition { at: at.location(), holds: false, is_met: false, in_else: false },
            _ => match conditions.pop() {
                Some(condition) if directive == "#endif" || !condition.in_else => condition,
                _ => return Err(ExpandError::Unbalanced { at: at.location(), directive: directive.to_owned() }),
            },
        };
        if directive == "#endif" {
            return Ok(());
        }
        condition.in_else = directive == "#else";
        let active = wanted && !condition.is_met && conditions.iter().all(|condition| condition.holds);
        let holds = condition.in_else || self.condition(rest, active, at).ok_or_else(|| malformed(at, line))??;
        condition.holds = holds && !condition.is_met;
        condition.is_met |= holds;
        conditions.push(condition);
        Ok(())
    }

    /// The counter and the count of `I in COUNT`. `None` if the text is something else.
    fn range<'t>(
        &mut self,
        text: &'t str,
        active: bool,
        at: Line<'_>,
    ) -> Option<Result<(&'t str, usize), ExpandError>> {
        let (name, count) = text.split_once(" in ")?;
        let (name, count) = (name.trim(), count.trim());
        if !is_name(name) {
            return None;
        }
        if !is_name(count) {
            return count.parse().ok().map(|count| Ok((name, count)));
        }
        match self.defines.mention(count) {
            Some(value) => value.parse().ok().map(|count| Ok((name, count))),
            None if active => Some(Err(undefined(at, count))),
            None => Some(Ok((name, 0))),
        }
    }

    fn include(&mut self, name: &str, at: Line<'_>) -> Result<(), ExpandError> {
        if self.seen.iter().any(|seen| seen == name) {
            return Ok(());
        }
        let text = (self.source)(name)
            .ok_or_else(|| ExpandError::UnknownInclude { at: at.location(), name: name.to_owned() })?;
        self.seen.push(name.to_owned());
        self.file(name, text)
    }

    /// Defines a macro. The names in its body count as mentioned, whether it is inserted or not.
    fn define(
        &mut self,
        name: &str,
        parameters: &[&str],
        body: &[&str],
        active: bool,
        at: Line<'_>,
    ) -> Result<(), ExpandError> {
        let parameters: Vec<_> = parameters.iter().map(|&parameter| parameter.to_owned()).collect();
        let unbound = parameters.iter().map(|parameter| (parameter.clone(), "0".to_owned())).collect();
        let first = at.number + 1;
        self.scoped(unbound, |expansion| expansion.lines(at.file, first, body, false))?;
        if !active {
            return Ok(());
        }
        if self.macros.iter().any(|earlier| earlier.name == name) {
            return Err(ExpandError::Duplicate { name: name.to_owned() });
        }
        let body = body.iter().map(|&line| line.to_owned()).collect();
        self.macros.push(Macro { name: name.to_owned(), parameters, file: at.file.to_owned(), first, body });
        Ok(())
    }

    /// The value of a define or counter of this name, or else the text itself.
    fn argument(&mut self, text: &str) -> String {
        self.defines.mention(text).map_or_else(|| text.to_owned(), Cow::into_owned)
    }

    /// Expands a macro's lines; `None` if the number of arguments is wrong.
    fn insert(&mut self, name: &str, arguments: Vec<String>, at: Line<'_>) -> Result<Option<()>, ExpandError> {
        let Some(found) = self.macros.iter().find(|found| found.name == name).cloned() else {
            return Err(ExpandError::UnknownMacro { at: at.location(), name: name.to_owned() });
        };
        if self.inside.iter().any(|outer| outer == name) {
            return Err(ExpandError::Circular { at: at.location(), name: name.to_owned() });
        }
        if found.parameters.len() != arguments.len() {
            return Ok(None);
        }
        self.inside.push(name.to_owned());
        let body: Vec<_> = found.body.iter().map(String::as_str).collect();
        let bound = found.parameters.into_iter().zip(arguments).collect();
        self.scoped(bound, |expansion| expansion.lines(&found.file, found.first, &body, true))?;
        self.inside.pop();
        Ok(Some(()))
    }

    /// Runs `expand` with these counters alone: a macro sees defines and its own parameters, but no loop around it.
    fn scoped(
        &mut self,
        counters: Vec<(String, String)>,
        expand: impl FnOnce(&mut Self) -> Result<(), ExpandError>,
    ) -> Result<(), ExpandError> {
        let outer = std::mem::replace(&mut self.defines.counters, counters);
        expand(self)?;
        self.defines.counters = outer;
        Ok(())
    }

    /// `true` if `NAME`, `!NAME`, `NAME == value` or `NAME != value` holds; a side with `+` or `*` is a sum. `None` if
    /// the text is none of these.
    fn condition(&mut self, text: &str, active: bool, at: Line<'_>) -> Option<Result<bool, ExpandError>> {
        let compared = |operator, equal| text.split_once(operator).map(|(name, value)| (name, value, equal));
        let Some((name, wanted, equal)) = compared("==", true).or_else(|| compared("!=", false)) else {
            let (name, is_defined) = text.strip_prefix('!').map_or((text, true), |name| (name, false));
            return is_name(name).then(|| Ok(self.defines.mention(name).is_some() == is_defined));
        };
        let (name, wanted) = (name.trim(), wanted.trim());
        let is_sum = |text: &str| text.contains(['+', '*']);
        if wanted.is_empty() || !is_name(name) && !is_sum(name) {
            return None;
        }
        let wanted = if is_sum(wanted) || is_sum(name) {
            match self.sum(wanted, active, at)? {
                Ok(sum) => sum.to_string().into(),
                Err(error) => return Some(Err(error)),
            }
        } else {
            Cow::Borrowed(wanted)
        };
        if is_sum(name) {
            return Some(self.sum(name, active, at)?.map(|sum| (sum.to_string() == wanted) == equal));
        }
        match self.defines.mention(name) {
            Some(value) => Some(Ok((value == wanted) == equal)),
            None if active => Some(Err(undefined(at, name))),
            None => Some(Ok(false)),
        }
    }

    /// The value of `A * B + C * 2 + …`: a sum of products of numbers and names. `None` if the text is something else.
    fn sum(&mut self, text: &str, active: bool, at: Line<'_>) -> Option<Result<usize, ExpandError>> {
        let mut sum = 0usize;
        for term in text.split('+') {
            let mut product = 1usize;
            for factor in term.split('*').map(str::trim) {
                let value = match self.defines.mention(factor) {
                    Some(value) => value.parse().ok().or((!active).then_some(0))?,
                    None if !is_name(factor) => factor.parse().ok()?,
                    None if active => return Some(Err(undefined(at, factor))),
                    None => 0,
                };
                product = product.checked_mul(value)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(Ok(sum))
    }

    /// Fills the holes of a line of WGSL.
    fn text(&mut self, line: &str, active: bool, at: Line<'_>) -> Result<(), ExpandError> {
        let mut rest = line;
        while let Some((before, hole)) = rest.split_once("${") {
            let Some((name, after)) = hole.split_once('}').filter(|(name, _)| is_name(name)) else {
                return Err(malformed(at, line));
            };
            let value = self.defines.mention(name);
            if active {
                self.wgsl.push_str(before);
                self.wgsl.push_str(&value.ok_or_else(|| undefined(at, name))?);
            }
            rest = after;
        }
        if active {
            self.wgsl.push_str(rest);
            self.wgsl.push('\n');
        }
        Ok(())
    }
}

/// The defines, and which of them have been mentioned.
struct Defines<'d> {
    entries: &'d [(&'d str, &'d str)],
    mentioned: Vec<bool>,
    /// The counters of the loops around the current line, the innermost last, after a macro's parameters.
    counters: Vec<(String, String)>,
}

impl<'d> Defines<'d> {
    fn new(entries: &'d [(&'d str, &'d str)]) -> Result<Self, ExpandError> {
        for (index, (name, _)) in entries.iter().enumerate() {
            if entries[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(ExpandError::Duplicate { name: (*name).to_owned() });
            }
        }
        Ok(Self { entries, mentioned: vec![false; entries.len()], counters: Vec::new() })
    }

    fn mention(&mut self, name: &str) -> Option<Cow<'d, str>> {
        if let Some((_, value)) = self.counters.iter().rev().find(|(counter, _)| counter == name) {
            return Some(Cow::Owned(value.clone()));
        }
        let index = self.entries.iter().position(|(entry, _)| *entry == name)?;
        self.mentioned[index] = true;
        Some(Cow::Borrowed(self.entries[index].1))
    }

    fn unused(&self) -> Option<&'d str> {
        let index = self.mentioned.iter().position(|mentioned| !mentioned)?;
        Some(self.entries[index].0)
    }
}

/// Splits a line that starts with `#` into the directive and its operand.
fn directive(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if !line.starts_with('#') {
        return None;
    }
    let (directive, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    Some((directive, rest.trim()))
}

/// The number of lines before the one that ends the loop or macro that these lines are in.
fn body_of(lines: &[&str], begin: &str, end: &str) -> Option<usize> {
    let mut depth = 1;
    lines.iter().position(|line| {
        match directive(line) {
            Some((found, _)) if found == begin => depth += 1,
            Some((found, _)) if found == end => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

/// The name and the operands of `name(a, b)`, neither of which is empty; without operands, `name()`.
fn call(text: &str) -> Option<(&str, Vec<&str>)> {
    let (name, operands) = text.strip_suffix(')')?.split_once('(')?;
    let operands: Vec<_> =
        if operands.trim().is_empty() { Vec::new() } else { operands.split(',').map(str::trim).collect() };
    (is_name(name) && operands.iter().all(|operand| !operand.is_empty())).then_some((name, operands))
}

fn unquote(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.strip_suffix('"').filter(|name| !name.is_empty())
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn malformed(at: Line<'_>, line: &str) -> ExpandError {
    ExpandError::Malformed { at: at.location(), line: line.trim().to_owned() }
}

fn undefined(at: Line<'_>, name: &str) -> ExpandError {
    ExpandError::Undefined { at: at.location(), name: name.to_owned() }
}

#[cfg(test)]
mod tests;
