//! The option that was meant.

use syn::{Error, Ident};

pub fn unknown(name: &Ident, known: &[&str]) -> Error {
    let given = name.to_string();
    let nearest = known.iter().map(|known| (distance(&given, known), known)).min();
    let message = match nearest {
        Some((distance, nearest)) if distance <= 1 + nearest.len() / 4 || given.starts_with(nearest) => {
            format!("unknown option `{given}`; did you mean `{nearest}`?")
        }
        _ => format!(
            "unknown option `{given}`; there are {}",
            known.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ")
        ),
    };
    Error::new_spanned(name, message)
}

/// How many letters must be inserted, removed or replaced to get from `a` to `b` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use proc_macro2::Span;

    use super::*;
    use crate::attr::FIELD;

    #[test]
    fn only_what_is_near_is_suggested() {
        let message = |name: &str| unknown(&Ident::new(name, Span::call_site()), FIELD).to_string();
        assert_eq!(message("frozn"), "unknown option `frozn`; did you mean `frozen`?");
        assert_eq!(message("skipped"), "unknown option `skipped`; did you mean `skip`?");
        assert_eq!(
            message("ignore"),
            "unknown option `ignore`; there are `skip`, `rename`, `frozen`, `init`, `before`, `then`"
        );
    }

    #[test]
    fn distances() {
        assert_eq!(distance("skip", "skip"), 0);
        assert_eq!(distance("", "skip"), 4);
        assert_eq!(distance("skipped", "skip"), 3);
        assert_eq!(distance("freeze", "frozen"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
