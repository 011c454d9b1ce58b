//! The loss of each step of a training run: files, smoothing, and figures that compare two runs.

use std::error::Error;
use std::path::Path;

use meganeura::run::read_metrics;

/// The first line of a file of losses.
const COLUMNS: &str = "step,loss";

/// The text of a file of losses: a line for each step, counted from 1.
#[must_use]
pub fn csv(losses: &[f32]) -> String {
    let lines = losses.iter().enumerate().map(|(index, loss)| format!("{},{loss}\n", index + 1));
    [format!("{COLUMNS}\n")].into_iter().chain(lines).collect()
}

/// The figures of a training run.
#[derive(Debug, Clone, PartialEq)]
pub struct Training {
    /// The loss of each step.
    pub losses: Vec<f32>,
    /// The share of test images classified correctly, at the end; `None` if it was not measured.
    pub accuracy: Option<f64>,
}

impl Training {
    /// Reads the folder of a run, or a file of losses.
    ///
    /// # Errors
    ///
    /// If there is no such file or folder, it holds no losses, or a line of it is damaged.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let training = if path.is_dir() {
            let lines = read_metrics(path)?;
            let losses = lines.iter().filter_map(|line| Some(*line.values.get("loss")? as f32)).collect();
            Self { losses, accuracy: lines.iter().rev().find_map(|line| line.values.get("accuracy").copied()) }
        } else {
            let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let losses = parse(&text).map_err(|error| format!("{}, {error}", path.display()))?;
            Self { losses, accuracy: None }
        };
        if training.losses.is_empty() {
            return Err(format!("{}: there are no losses", path.display()).into());
        }
        Ok(training)
    }
}

/// The losses of a file.
fn parse(text: &str) -> Result<Vec<f32>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(COLUMNS) {
        return Err(format!("line 1: must be `{COLUMNS}`"));
    }
    let loss = |(index, line): (usize, &str)| {
        let step = index + 1;
        let fields = line.split_once(',').filter(|(number, _)| number.parse() == Ok(step));
        let loss = fields.and_then(|(_, loss)| loss.parse().ok());
        loss.ok_or_else(|| format!("line {}: must be `{step},LOSS`, not `{line}`", index + 2))
    };
    lines.enumerate().map(loss).collect()
}

/// The running mean of `window` losses, of fewer in the first steps.
#[must_use]
pub fn running_mean(losses: &[f32], window: usize) -> Vec<f32> {
    (1..=losses.len()).map(|end| mean_of_last(&losses[..end], window)).collect()
}

/// The mean of the last `count` losses, or of all if there are fewer; 0 if there are none.
#[must_use]
pub fn mean_of_last(losses: &[f32], count: usize) -> f32 {
    let last = &losses[losses.len().saturating_sub(count)..];
    last.iter().sum::<f32>() / last.len().max(1) as f32
}

/// The head of the Markdown table that [`row`] adds to.
pub const TABLE: &str = "| training | steps | final loss, full | fast | difference | accuracy, full | fast |\n\
                         |---|---|---|---|---|---|---|";

/// A row of the table: the same training in full and in fast precision. The final loss is the mean of the last `last`
/// steps.
#[must_use]
pub fn row(name: &str, full: &Training, fast: &Training, last: usize) -> String {
    let [a, b] = [full, fast].map(|training| mean_of_last(&training.losses, last));
    let difference = 100.0 * (b - a) / a;
    let [loss, fast_loss] = [a, b].map(|loss| if loss < 0.01 { format!("{loss:.2e}") } else { format!("{loss:.4}") });
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let [accuracy, fast_accuracy] =
        [full, fast].map(|training| training.accuracy.map_or_else(|| "-".to_owned(), percent));
    let steps = full.losses.len();
    format!("| {name} | {steps} | {loss} | {fast_loss} | {difference:+.1} % | {accuracy} | {fast_accuracy} |")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("losses.csv");
        let losses = [2.312_585, 0.1, 3.4e-8, 0.0, f32::INFINITY];
        assert!(csv(&losses).starts_with("step,loss\n1,2.312585\n2,0.1\n"));
        std::fs::write(&path, csv(&losses)).unwrap();
        assert_eq!(Training::read(&path).unwrap(), Training { losses: losses.to_vec(), accuracy: None });
        assert!(parse(&csv(&[f32::NAN])).unwrap()[0].is_nan());
    }

    #[test]
    fn damaged_files_are_refused() {
        for (text, expected) in [
            ("", "line 1: must be `step,loss`"),
            ("1,2.3\n", "line 1: must be `step,loss`"),
            ("step,loss\n1,2.3\n3,2.1\n", "line 3: must be `2,LOSS`, not `3,2.1`"),
            ("step,loss\n1,x\n", "line 2: must be `1,LOSS`, not `1,x`"),
            ("step,loss\n1\n", "line 2: must be `1,LOSS`, not `1`"),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| Training::read(path).unwrap_err().to_string();
        assert!(message(folder.path()).ends_with(": there are no losses"));
        let path = folder.path().join("losses.csv");
        assert!(message(&path).starts_with(&path.display().to_string()));
        std::fs::write(&path, csv(&[])).unwrap();
        assert!(message(&path).ends_with("losses.csv: there are no losses"));
    }

    #[test]
    fn a_run_has_losses_and_its_last_accuracy() {
        let folder = tempfile::tempdir().unwrap();
        let line =
            |step: u64, values: &str| format!("{{\"batch\":0,\"epoch\":1,\"step\":{step},\"time\":1.5,{values}}}\n");
        let lines = [
            line(1, "\"loss\":2.0,\"lr\":0.1"),
            line(1, "\"accuracy\":0.5"),
            line(2, "\"loss\":\"NaN\",\"lr\":0.1"),
            line(2, "\"accuracy\":0.75"),
        ];
        std::fs::write(folder.path().join("metrics.jsonl"), lines.concat()).unwrap();
        let Training { losses, accuracy } = Training::read(folder.path()).unwrap();
        assert!(losses.len() == 2 && losses[0] == 2.0 && losses[1].is_nan(), "{losses:?}");
        assert_eq!(accuracy, Some(0.75));
    }

    #[test]
    fn means_begin_with_the_available_losses() {
        assert_eq!(running_mean(&[4.0, 2.0, 3.0, 7.0], 3), [4.0, 3.0, 3.0, 4.0]);
        assert_eq!(running_mean(&[4.0, 2.0], 1), [4.0, 2.0]);
        assert!(running_mean(&[], 3).is_empty());
        assert_eq!(
            (mean_of_last(&[9.0, 1.0, 3.0], 2), mean_of_last(&[1.0], 50), mean_of_last(&[], 2)),
            (2.0, 1.0, 0.0)
        );
    }

    #[test]
    fn a_row_compares_the_last_steps() {
        let training = |losses: &[f32], accuracy| Training { losses: losses.to_vec(), accuracy };
        let (full, fast) = (training(&[2.0, 1.0, 0.5], None), training(&[2.0, 1.0, 0.53], None));
        assert_eq!(row("tiny", &full, &fast, 1), "| tiny | 3 | 0.5000 | 0.5300 | +6.0 % | - | - |");
        let (full, fast) = (training(&[4e-3], Some(0.991)), training(&[3e-3], Some(0.9905)));
        let expected = "| resnet | 1 | 4.00e-3 | 3.00e-3 | -25.0 % | 99.10 % | 99.05 % |";
        assert_eq!(row("resnet", &full, &fast, 50), expected);
        let columns = |line: &str| line.matches('|').count();
        assert!(TABLE.lines().all(|line| columns(line) == columns(expected)));
    }
}
