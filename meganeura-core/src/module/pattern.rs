//! Patterns of paths: segments between dots, where `**` matches any number of segments, and `*` within one any
//! characters.
//!
//! Matching takes at most time proportional to the product of both lengths, whatever the pattern and the path contain.
//! The part between two wildcards matches at its first occurrence: any later one would leave less for the rest. So
//! nothing is tried twice.

/// `true` if the pattern matches the whole path.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    match_segments(pattern, path, &mut |_| ())
}

/// The matches of a pattern's wildcards in a path that it matches, in order; each is as short as possible.
#[doc(hidden)]
pub fn captures<'p>(pattern: &str, path: &'p str) -> Option<Vec<Vec<&'p str>>> {
    let mut found = Vec::new();
    match_segments(pattern, path, &mut |capture| found.push(capture.to_vec())).then_some(found)
}

/// Passes the match of each wildcard to `capture`; these are invalid if the rest does not match.
fn match_segments<'p>(pattern: &str, path: &'p str, capture: &mut dyn FnMut(&[&'p str])) -> bool {
    let (pattern, path): (Vec<&str>, Vec<&'p str>) = (pattern.split('.').collect(), path.split('.').collect());
    // The runs of segments between `**`. The first and the last are at the ends of the path.
    let mut runs = pattern.split(|segment| *segment == "**");
    let first = runs.next().unwrap_or_default();
    let Some((front, mut rest)) = path.split_at_checked(first.len()) else { return false };
    if !match_run(first, front, capture) {
        return false;
    }
    let Some(last) = runs.next_back() else { return rest.is_empty() };
    for run in runs {
        let fits = |taken: &usize| match_run(run, &rest[*taken..][..run.len()], &mut |_| ());
        let places = (rest.len() + 1).saturating_sub(run.len());
        let Some(taken) = (0..places).find(fits) else { return false };
        capture(&rest[..taken]);
        match_run(run, &rest[taken..][..run.len()], capture);
        rest = &rest[taken + run.len()..];
    }
    let Some(taken) = rest.len().checked_sub(last.len()) else { return false };
    capture(&rest[..taken]);
    match_run(last, &rest[taken..], capture)
}

/// Matches as many segments as there are patterns of segments.
fn match_run<'p>(patterns: &[&str], segments: &[&'p str], capture: &mut dyn FnMut(&[&'p str])) -> bool {
    patterns.iter().zip(segments).all(|(pattern, segment)| match_segment(pattern, segment, capture))
}

fn match_segment<'p>(pattern: &str, segment: &'p str, capture: &mut dyn FnMut(&[&'p str])) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = segment.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        let Some((taken, others)) = rest.split_once(piece) else { return false };
        capture(&[taken]);
        rest = others;
    }
    let Some(taken) = rest.strip_suffix(last) else { return false };
    capture(&[taken]);
    true
}

/// A pattern with its wildcards replaced by these captures, which must be equally many.
#[doc(hidden)]
pub fn fill(pattern: &str, captures: &[Vec<&str>]) -> String {
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

/// The wildcards of a pattern, in order.
#[doc(hidden)]
pub fn wildcards(pattern: &str) -> Vec<&'static str> {
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
            assert!(matches(pattern, path), "{pattern} {path}");
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
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn wildcards_capture_what_they_match() {
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
            assert_eq!(matches(pattern, path), expected.is_some(), "{pattern} {path}");
        }
        assert_eq!(wildcards("a.**.b*c*.*"), ["**", "*", "*", "*"]);
    }

    /// The obvious matcher: backtracks, tries shorter captures first, and takes exponential time.
    fn backtracked<'p>(pattern: &[&str], path: &[&'p str], found: &mut Vec<Vec<&'p str>>) -> bool {
        let Some((&wanted, rest)) = pattern.split_first() else { return path.is_empty() };
        let before = found.len();
        let matches = match (wanted, path.split_first()) {
            ("**", _) => (0..=path.len()).any(|taken| {
                found.truncate(before);
                found.push(path[..taken].to_vec());
                backtracked(rest, &path[taken..], found)
            }),
            (_, Some((segment, others))) => backtracked_in(wanted, segment, found) && backtracked(rest, others, found),
            (_, None) => false,
        };
        if !matches {
            found.truncate(before);
        }
        matches
    }

    fn backtracked_in<'p>(wanted: &str, segment: &'p str, found: &mut Vec<Vec<&'p str>>) -> bool {
        let Some((literal, rest)) = wanted.split_once('*') else { return wanted == segment };
        let Some(segment) = segment.strip_prefix(literal) else { return false };
        let before = found.len();
        let mut ends = segment.char_indices().map(|(at, _)| at).chain([segment.len()]);
        ends.any(|end| {
            found.truncate(before);
            found.push(vec![&segment[..end]]);
            backtracked_in(rest, &segment[end..], found)
        })
    }

    #[track_caller]
    fn same_as_backtracked(pattern: &str, path: &str) {
        let mut expected = Vec::new();
        let (segments, places): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), path.split('.').collect());
        let expected = backtracked(&segments, &places, &mut expected).then_some(expected);
        assert_eq!(captures(pattern, path), expected, "{pattern} {path}");
        assert_eq!(matches(pattern, path), expected.is_some(), "{pattern} {path}");
    }

    /// All texts of up to `length` letters from this alphabet.
    fn texts(letters: &[&str], length: usize) -> Vec<String> {
        let mut texts = vec![String::new()];
        for end in 1..=length {
            let longer = texts.iter().filter(|text| text.chars().count() == end - 1).cloned().collect::<Vec<_>>();
            texts.extend(longer.iter().flat_map(|text| letters.iter().map(move |letter| format!("{text}{letter}"))));
        }
        texts
    }

    #[test]
    fn every_short_pattern_matches_as_by_trying_everything() {
        let paths = texts(&["a", "b", "."], 4);
        for pattern in texts(&["a", "b", ".", "*"], 5) {
            paths.iter().for_each(|path| same_as_backtracked(&pattern, path));
        }
    }

    #[test]
    fn longer_patterns_match_as_by_trying_everything() {
        let mut rng = crate::Seed::new(11).rng();
        let mut text = |letters: &[&str], most: u32| {
            let length = rng.next_u32() % most;
            (0..length).map(|_| letters[rng.next_u32() as usize % letters.len()]).collect::<String>()
        };
        for _ in 0..20_000 {
            let pattern = text(&["a", "b", "é", ".", ".", "*", "**", ".**.", ".*."], 9);
            same_as_backtracked(&pattern, &text(&["a", "b", "é", ".", "."], 16));
        }
    }

    #[test]
    fn hostile_names_take_no_longer_than_others() {
        // With backtracking, the first would take quadratic time, and the others longer than the age of the universe.
        let dots = ".".repeat(1_000_000);
        assert!(!matches("**.counter", &dots) && matches("**", &dots) && !matches("*.**.x.**", &dots));
        let stars = ["**"; 64].join(".x.");
        let path = vec!["x"; 4_000].join(".");
        assert!(matches(&stars, &path) && !matches(&format!("{stars}.y"), &path));
        let wide = format!("{}b", "*a".repeat(64));
        assert!(!matches(&wide, &"a".repeat(100_000)));
        assert_eq!(captures("**.x", &format!("{dots}x")).map(|found| found[0].len()), Some(1_000_000));
    }
}
