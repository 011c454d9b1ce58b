//! Suggestions for misspelled names.

use syn::{Error, Ident};

/// The message for an unknown option.
pub fn unknown(name: &Ident, known: &[&str]) -> Error {
    let given = name.to_string();
    let message = match nearest(&given, known.iter().copied()) {
        Some(nearest) => format!("unknown option `{given}`; did you mean `{nearest}`?"),
        None => format!("unknown option `{given}`; {}", there_is(known)),
    };
    Error::new_spanned(name, message)
}

fn there_is(known: &[&str]) -> String {
    let verb = if known.len() == 1 { "is" } else { "are" };
    format!("there {verb} {}", known.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", "))
}

/// The most similar name, if any is similar enough.
pub fn nearest<T: AsRef<str>>(given: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    let (distance, nearest) = known
        .into_iter()
        .map(|known| (strsim::levenshtein(given, known.as_ref()), known))
        .min_by_key(|&(distance, _)| distance)?;
    let is_near = distance <= 1 + nearest.as_ref().len() / 4 || given.starts_with(nearest.as_ref());
    is_near.then_some(nearest)
}

#[cfg(test)]
mod tests {
    use proc_macro2::Span;

    use super::*;
    use crate::attr::FIELD;

    #[test]
    fn only_near_options_are_suggested() {
        let message = |name: &str| unknown(&Ident::new(name, Span::call_site()), FIELD).to_string();
        assert_eq!(message("frozn"), "unknown option `frozn`; did you mean `frozen`?");
        assert_eq!(message("skipped"), "unknown option `skipped`; did you mean `skip`?");
        assert_eq!(
            message("ignore"),
            "unknown option `ignore`; there are `skip`, `rename`, `frozen`, `init`, `before`, `then`, `recompute`"
        );
    }
}
