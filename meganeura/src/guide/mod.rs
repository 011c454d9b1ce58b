//! A short book. Tests run its examples and compare their output.
//!
//! | | |
//! |---|---|
//! | 1. [Your first model](first_model) | from an empty folder to trained weights in a file |
//! | 2. [A layer of your own](your_own_layer) | a `forward` and parameters, checked in two lines |
//! | 3. [An operation of your own](custom_op) | gradient rule, native kernel and WGSL |
//! | 4. [Data](data) | from files to batches on a device |
//! | 5. [Training and resuming](runs) | the training loop, which survives a crash, and inspecting it afterwards |
//! | 6. [Programs of a screen](programs) | segmentation, detection, a time series, text, fine-tuning, diffusion, a GAN |
//! | 7. [Seeing a model](seeing) | layers and their costs, graphs, curves, traces |
//! | 8. [Many devices](scaling) | several processes that train one model |
//! | 9. [In a web page](in_a_page) | your model in a browser, in twenty lines |
//! | 10. [How a step becomes a plan](plans) | reading a plan line by line |
//! | 11. [When it is slow or wrong](troubleshooting) | errors, NaN, gradients, time, memory |
//!
//! Reference pages:
//!
//! | | |
//! |---|---|
//! | [From PyTorch](from_pytorch) | PyTorch's counterparts here, and the differences |
#![cfg_attr(feature = "onnx", doc = "| [ONNX](onnx) | export and import of ONNX files |")]
//! | [Three models](models) | declared, written out, in PyTorch and in burn |
//! | [The derive](derive@crate::Module) | every attribute |

pub mod first_model {
    #![doc = include_str!("first_model.md")]
}

pub mod your_own_layer {
    #![doc = include_str!("your_own_layer.md")]
}

pub mod custom_op {
    #![doc = include_str!("custom_op.md")]
}

pub mod data {
    #![doc = include_str!("data.md")]
}

pub mod runs {
    #![doc = include_str!("runs.md")]
}

pub mod programs {
    #![doc = include_str!("programs.md")]
}

pub mod seeing {
    #![doc = include_str!("seeing.md")]
}

pub mod scaling {
    #![doc = include_str!("scaling.md")]
}

pub mod in_a_page {
    #![doc = include_str!("in_a_page.md")]
}

pub mod plans {
    #![doc = include_str!("plans.md")]
}

pub mod troubleshooting {
    #![doc = include_str!("troubleshooting.md")]
}

pub mod from_pytorch {
    #![doc = include_str!("from_pytorch.md")]
}

#[cfg(feature = "onnx")]
pub mod onnx {
    #![doc = include_str!("onnx.md")]
}

pub mod models {
    #![doc = include_str!("models.md")]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    const MODELS: &str = include_str!("models.md");
    const PROGRAMS: &str = include_str!("programs.md");

    /// The number of code lines below each heading and subheading.
    fn counted(page: &'static str) -> HashMap<(&'static str, &'static str), usize> {
        let (mut counts, mut in_code, mut place) = (HashMap::new(), false, ("", ""));
        for line in page.lines() {
            if line.starts_with("```") {
                in_code = !in_code;
            } else if in_code {
                // Lines hidden by rustdoc begin with `# `.
                *counts.entry(place).or_default() += usize::from(!line.trim().is_empty() && !line.starts_with("# "));
            } else if let Some(form) = line.strip_prefix("## ") {
                place.1 = form;
            } else if let Some(model) = line.strip_prefix("# ") {
                place = (model, "");
            }
        }
        counts
    }

    /// The rows of a page's table that begin with a link, each with the text of the link first.
    fn rows(page: &'static str) -> Vec<Vec<&'static str>> {
        let rows = page.lines().filter(|line| line.starts_with("| ["));
        let mut rows: Vec<Vec<_>> =
            rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
        rows.iter_mut().for_each(|row| row[0] = row[0].trim_start_matches('[').split(']').next().unwrap());
        rows
    }

    #[test]
    fn the_tables_show_the_real_line_counts() {
        let (programs, rows_of_programs) = (counted(PROGRAMS), rows(PROGRAMS));
        assert_eq!(rows_of_programs.len(), programs.len());
        for row in rows_of_programs {
            assert_eq!(programs[&(row[0], "")].to_string(), row[1], "{}", row[0]);
        }
        let (counts, rows) = (counted(MODELS), rows(MODELS));
        assert_eq!(rows.len(), 3);
        for row in rows {
            let model = row[0];
            for (form, said) in ["Declared", "Written out", "PyTorch", "burn"].iter().zip(&row[1..]) {
                assert_eq!(counts[&(model, *form)].to_string(), *said, "{model}, {form}");
            }
        }
    }
}
