//! Guides: pages to read from the beginning. Their examples are compiled and run.

pub mod data {
    #![doc = include_str!("data.md")]
}

pub mod from_pytorch {
    #![doc = include_str!("from_pytorch.md")]
}

pub mod models {
    #![doc = include_str!("models.md")]
}

pub mod runs {
    #![doc = include_str!("runs.md")]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    const MODELS: &str = include_str!("models.md");

    /// How many lines of code there are below each heading and subheading.
    fn counted() -> HashMap<(&'static str, &'static str), usize> {
        let (mut counts, mut in_code, mut place) = (HashMap::new(), false, ("", ""));
        for line in MODELS.lines() {
            if line.starts_with("```") {
                in_code = !in_code;
            } else if in_code {
                // What rustdoc hides begins with `# `.
                *counts.entry(place).or_default() += usize::from(!line.trim().is_empty() && !line.starts_with("# "));
            } else if let Some(form) = line.strip_prefix("## ") {
                place.1 = form;
            } else if let Some(model) = line.strip_prefix("# ") {
                place = (model, "");
            }
        }
        counts
    }

    #[test]
    fn the_table_counts_what_is_there() {
        let counts = counted();
        let rows: Vec<Vec<&str>> = MODELS
            .lines()
            .filter(|line| line.starts_with("| ["))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), 3);
        for row in rows {
            let model = row[0].trim_start_matches('[').split(']').next().unwrap();
            for (form, said) in ["Declared", "Written out", "PyTorch", "burn"].iter().zip(&row[1..]) {
                assert_eq!(counts[&(model, *form)].to_string(), *said, "{model}, {form}");
            }
        }
    }
}
