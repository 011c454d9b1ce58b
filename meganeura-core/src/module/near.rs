//! Suggestions of similar names, for messages. The work is bounded, whatever the names are.

/// Longer names are implausible, and expensive to compare.
const LONGEST: usize = 256;
/// The number of names compared letter by letter; models have thousands.
const COMPARED: usize = 16;

/// The nearest of `names` to `wanted`, each name with a penalty: at most 16, with their distances, the nearest first.
///
/// `wanted` may be a pattern: `**` matches any number of segments, `*` any characters of one.
#[doc(hidden)]
pub fn nearest<'n, T>(wanted: &str, names: impl IntoIterator<Item = (&'n str, usize, T)>) -> Vec<(usize, T)> {
    let is_short = |name: &str| name.len().max(wanted.len()) <= LONGEST;
    let unlike = |name: &str| name.len().max(wanted.len()) - shared_ends(wanted, name);
    let likely = names.into_iter().filter(|(name, ..)| is_short(name)).enumerate();
    let mut likely: Vec<_> = likely.map(|(at, name)| ((name.1 + unlike(name.0), at), name)).collect();
    if likely.len() > COMPARED {
        likely.select_nth_unstable_by_key(COMPARED, |(unlike, _)| *unlike);
        likely.truncate(COMPARED);
    }
    // In the original order, which decides between equally near names.
    likely.sort_unstable_by_key(|((_, at), _)| *at);
    let distance = |(_, (name, misfit, item))| (misfit + distance(wanted, name), item);
    let mut near: Vec<_> = likely.into_iter().map(distance).collect();
    near.sort_by_key(|(distance, _)| *distance);
    near
}

/// The number of bytes that two names share at their starts and at their ends.
fn shared_ends(a: &str, b: &str) -> usize {
    let same = |(a, b): &(u8, u8)| a == b;
    let (front, back) = (a.bytes().zip(b.bytes()), a.bytes().rev().zip(b.bytes().rev()));
    (front.take_while(same).count() + back.take_while(same).count()).min(a.len().min(b.len()))
}

/// The number of characters that must change until the pattern matches: 0 if it does.
fn distance(pattern: &str, path: &str) -> usize {
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

/// Levenshtein's distance, where some parts of the pattern match anything.
fn edits<T>(
    pattern: &[T],
    found: &[T],
    is_anything: impl Fn(&T) -> bool,
    cost: impl Fn(&T) -> usize,
    exchange: impl Fn(&T, &T) -> usize,
) -> usize {
    // From an empty pattern to the first parts of the name.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_in_characters() {
        assert_eq!(distance("head.wieght", "head.weight"), 2);
        assert_eq!(distance("**.baias", "stem.bias"), 1);
        assert_eq!(distance("stem", "stem.bias"), 4);
        assert_eq!(distance("blocks.*.**", "blocks.12.conv.bias"), 0);
    }

    #[test]
    fn the_nearest_names_come_first_and_ties_keep_their_order() {
        let names = ["b.bias", "a.weight", "c.weight", "stem.weight"];
        let near = nearest("x.weight", names.iter().enumerate().map(|(at, name)| (*name, 0, at)));
        assert_eq!(near, [(1, 1), (1, 2), (4, 3), (6, 0)]);
        let near = nearest("x.weight", [("a.weight", 3, 'a'), ("b.weight", 0, 'b')]);
        assert_eq!(near, [(1, 'b'), (4, 'a')]);
        let many: Vec<_> = (0..10_000).map(|k| format!("blocks.{k}.weight")).collect();
        let near = nearest("blocks.777.wieght", many.iter().map(|name| (&**name, 0, &**name)));
        assert_eq!((near.len(), near[0]), (16, (2, "blocks.777.weight")));
    }

    #[test]
    fn names_of_a_megabyte_are_not_compared() {
        let long = "é.".repeat(500_000);
        assert!(nearest(&long, [("a", 0, ())]).is_empty());
        assert!(nearest("a", [(&*long, 0, ())]).is_empty());
    }
}
