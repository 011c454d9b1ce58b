//! Patterns of paths: segments between dots, where `**` stands for any number of them and `*` in one for any characters.

/// How many characters must change until the pattern matches: 0 if it does.
pub(crate) fn distance(pattern: &str, path: &str) -> usize {
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), path.split('.').collect());
    let length = |segment: &&str| segment.chars().count().max(1);
    edits(
        &pattern,
        &path,
        |segment| *segment == "**",
        length,
        |wanted, found| {
            let (wanted, found): (Vec<char>, Vec<char>) = (wanted.chars().collect(), found.chars().collect());
            edits(&wanted, &found, |c| *c == '*', |_| 1, |a, b| usize::from(a != b))
        },
    )
}

/// Levenshtein's distance, where some parts of the pattern stand for anything.
fn edits<T>(
    pattern: &[T],
    found: &[T],
    is_anything: impl Fn(&T) -> bool,
    cost: impl Fn(&T) -> usize,
    exchange: impl Fn(&T, &T) -> usize,
) -> usize {
    // From no pattern to the first parts of what was found.
    let mut row: Vec<usize> = vec![0];
    row.extend(found.iter().scan(0, |sum, part| {
        *sum += cost(part);
        Some(*sum)
    }));
    for wanted in pattern {
        let above = row.clone();
        let anything = is_anything(wanted);
        row[0] += if anything { 0 } else { cost(wanted) };
        for (j, part) in found.iter().enumerate() {
            row[j + 1] = match anything {
                true => above[j + 1].min(row[j]),
                false => {
                    let (removed, added) = (above[j + 1] + cost(wanted), row[j] + cost(part));
                    removed.min(added).min(above[j] + exchange(wanted, part))
                }
            };
        }
    }
    row[found.len()]
}

/// What the wildcards of a pattern stand for in a path that it matches, in their order; each takes as little as it can.
pub(crate) fn captures<'p>(pattern: &str, path: &'p str) -> Option<Vec<Vec<&'p str>>> {
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), path.split('.').collect());
    let mut found = Vec::new();
    capture_segments(&pattern, &path, &mut found).then_some(found)
}

fn capture_segments<'p>(pattern: &[&str], path: &[&'p str], found: &mut Vec<Vec<&'p str>>) -> bool {
    let Some((&wanted, rest)) = pattern.split_first() else { return path.is_empty() };
    let before = found.len();
    let matches = match (wanted, path.split_first()) {
        ("**", _) => (0..=path.len()).any(|taken| {
            found.truncate(before);
            found.push(path[..taken].to_vec());
            capture_segments(rest, &path[taken..], found)
        }),
        (_, Some((segment, others))) => capture_in(wanted, segment, found) && capture_segments(rest, others, found),
        (_, None) => false,
    };
    if !matches {
        found.truncate(before);
    }
    matches
}

fn capture_in<'p>(wanted: &str, segment: &'p str, found: &mut Vec<Vec<&'p str>>) -> bool {
    let Some((literal, rest)) = wanted.split_once('*') else { return wanted == segment };
    let Some(segment) = segment.strip_prefix(literal) else { return false };
    let before = found.len();
    let ends = segment.char_indices().map(|(at, _)| at).chain([segment.len()]);
    ends.into_iter().any(|end| {
        found.truncate(before);
        found.push(vec![&segment[..end]]);
        capture_in(rest, &segment[end..], found)
    })
}

/// A pattern with these in the places of its wildcards, which must be as many.
pub(crate) fn fill(pattern: &str, captures: &[Vec<&str>]) -> String {
    let mut captures = captures.iter();
    let mut segments = Vec::new();
    for segment in pattern.split('.') {
        if segment == "**" {
            segments.extend(captures.next().into_iter().flatten().map(|&segment| segment.to_owned()));
            continue;
        }
        let mut filled = String::new();
        for (index, literal) in segment.split('*').enumerate() {
            if index > 0 {
                filled.extend(captures.next().into_iter().flatten().copied());
            }
            filled.push_str(literal);
        }
        segments.push(filled);
    }
    segments.join(".")
}

/// The wildcards of a pattern, in their order.
pub(crate) fn wildcards(pattern: &str) -> Vec<&'static str> {
    let of = |segment: &str| if segment == "**" { vec!["**"] } else { vec!["*"; segment.matches('*').count()] };
    pattern.split('.').flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths() {
        for (pattern, path) in [
            ("stem.weight", "stem.weight"),
            ("*.weight", "stem.weight"),
            ("st*.w*t", "stem.weight"),
            ("encoder.**", "encoder.0.conv.weight"),
            ("encoder.**", "encoder"),
            ("**.bias", "bias"),
            ("**.bias", "a.b.bias"),
            ("a.**.bias", "a.bias"),
            ("a.**.b.**.c", "a.x.b.y.z.c"),
            ("**", ""),
            ("**", "a.b"),
            ("*", "weight"),
            ("blocks.*.conv.*", "blocks.12.conv.bias"),
        ] {
            assert_eq!(distance(pattern, path), 0, "{pattern} {path}");
        }
        for (pattern, path) in [
            ("stem", "stem.weight"),
            ("*", "stem.weight"),
            ("**.bias", "a.biases"),
            ("encoder.**", "encoders.0"),
            ("*.*", "weight"),
            ("", "weight"),
            ("weight", ""),
        ] {
            assert!(distance(pattern, path) > 0, "{pattern} {path}");
        }
    }

    #[test]
    fn what_is_near_is_counted_in_characters() {
        assert_eq!(distance("head.wieght", "head.weight"), 2);
        assert_eq!(distance("**.baias", "stem.bias"), 1);
        assert_eq!(distance("stem", "stem.bias"), 4);
    }

    #[test]
    fn wildcards_stand_for_what_they_match() {
        for (pattern, path, to, expected) in [
            ("conv1.*", "conv1.weight", "stem.*", Some("stem.weight")),
            ("conv1.*", "layer1.conv1.weight", "stem.*", None),
            ("layer1.**", "layer1.0.conv1.weight", "stages.0.**", Some("stages.0.0.conv1.weight")),
            ("**.bn*.*", "a.b.bn2.bias", "**.norm*.*", Some("a.b.norm2.bias")),
            ("**.bn*.*", "bn1.bias", "**.norm*.*", Some("norm1.bias")),
            ("model.**", "model.a.b", "**", Some("a.b")),
            ("**", "a.b", "model.**", Some("model.a.b")),
            ("**.x.**", "a.x.b.x.c", "**.y.**", Some("a.y.b.x.c")),
            ("w*_*", "w1_a_b", "*-*", Some("1-a_b")),
            ("*é*", "aéb", "*.*", Some("a.b")),
            ("*", "", "x*", Some("x")),
            ("plain", "plain", "other", Some("other")),
            ("plain", "plainer", "other", None),
        ] {
            let found = captures(pattern, path).map(|captures| fill(to, &captures));
            assert_eq!(found.as_deref(), expected, "{pattern} {path}");
            assert_eq!(distance(pattern, path) == 0, expected.is_some(), "{pattern} {path}");
        }
        assert_eq!(wildcards("a.**.b*c*.*"), ["**", "*", "*", "*"]);
    }
}
