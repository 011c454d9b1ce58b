//! Text: schedules, patterns of paths, and rules for names.

use fastrand::Rng;
use meganeura::io::Names;
use meganeura::nn::Linear;
use meganeura::optim::{Plateau, Schedule};
use meganeura::{Device, ErrorKind, Init, ModuleExt, Seed};

use super::{Target, documented, join, split};
use crate::mutate;

/// A schedule, which must print as it was read.
pub struct Schedules;

impl Schedules {
    fn take(input: &[u8]) -> Result<bool, String> {
        let text = String::from_utf8_lossy(input);
        let Some(schedule) = documented(text.parse::<Schedule>(), &[ErrorKind::Argument])? else { return Ok(false) };
        let written = schedule.to_string();
        let again = written.parse::<Schedule>().map_err(|error| format!("`{written}` is not read again: {error}"))?;
        if again.to_string() != written {
            return Err(format!("`{written}` becomes `{again}`"));
        }
        for step in [0, 1, 2, 10, 999, u64::from(u32::MAX), u64::MAX] {
            // Comparing bits, so that NaN equals itself.
            if schedule.at(step).to_bits() != again.at(step).to_bits() {
                return Err(format!("`{written}` has another value at step {step}"));
            }
        }
        Ok(true)
    }
}

impl Target for Schedules {
    fn name(&self) -> &'static str {
        "schedules"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let seeds = [
            "constant(0.1)",
            "linear(0.1, 0.0, 100)",
            "step(0.1, 0.5, 10)",
            "multi_step(0.1, 0.1, 3, 6)",
            "exponential(0.1, 0.9)",
            "cosine(0.1, 100, 0.001)",
            "cosine_restarts(0.1, 10, 2, 0.001)",
            "polynomial(0.1, 100, 2.0, 0.0)",
            "one_cycle(0.1, 100, 0.3, 25.0, 10000.0)",
            "warmup(5, then(10, constant(0.1), cosine(0.1, 90, 0.0)))",
        ];
        seeds.map(Into::into).to_vec()
    }

    fn words(&self) -> &'static [&'static str] {
        &["warmup(1, ", "then(1, ", "constant(1)", "(", ")", ", ", "nan", "inf", "-inf", "1e308", "-0.0", "multi_step("]
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}

/// The state of a learning rate that follows a metric.
pub struct Plateaus;

impl Plateaus {
    fn take(input: &[u8]) -> Result<bool, String> {
        let text = String::from_utf8_lossy(input);
        let mut plateau = Plateau::new(0.1).patience(2).cooldown(1);
        if documented(plateau.load_state(&text), &[ErrorKind::Checkpoint])?.is_none() {
            return Ok(false);
        }
        let (written, mut again) = (plateau.state(), Plateau::new(0.2).patience(2).cooldown(1));
        again.load_state(&written).map_err(|error| format!("`{written}` is not read again: {error}"))?;
        for metric in [1.0, 0.5, f64::NAN, f64::INFINITY, -1.0, 3.0, 3.0, 3.0, 3.0] {
            if plateau.tell(metric) != again.tell(metric) || plateau.state() != again.state() {
                return Err(format!("`{written}` goes on in another way"));
            }
        }
        Ok(true)
    }
}

impl Target for Plateaus {
    fn name(&self) -> &'static str {
        "plateaus"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        ["plateau(0.1, inf, 0, 0)", "plateau(0.01, 0.25, 3, 1)", "plateau(1e-300, -inf, 7, 0)"].map(Into::into).to_vec()
    }

    fn words(&self) -> &'static [&'static str] {
        &["plateau(", "(", ")", ", ", "nan", "inf", "-inf", "1e308", "-0.0", "18446744073709551615"]
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}

/// A pattern and a name, used as a rule of [`Names`] and on the paths of a model.
pub struct Patterns;

impl Patterns {
    fn take(input: &[u8]) -> Result<bool, String> {
        let (pattern, name) = split(input);
        let (pattern, name) = (String::from_utf8_lossy(pattern), String::from_utf8_lossy(name));
        let kinds = [ErrorKind::Argument];
        // A name that is renamed to itself stays.
        let same = Names::new().rename(&*pattern, &*pattern);
        if let Some(path) = documented(same.path(&name), &kinds)?
            && path != name
        {
            return Err(format!("`{pattern}`, renamed to itself, makes `{name}` `{path}`"));
        }
        let matched = documented(Names::new().ignore(&*pattern).path(&name), &kinds)?.is_none();
        let net = (Linear::new(1, 1), Linear::new(1, 1)).init(&Device::cpu(), Seed::new(1));
        let mut net = net.expect("the model fits");
        documented(net.freeze(&pattern), &kinds)?;
        documented(net.thaw(&name), &kinds)?;
        Ok(matched)
    }
}

impl Target for Patterns {
    fn name(&self) -> &'static str {
        "patterns"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let seeds = [
            ("stem.weight", "stem.weight"),
            ("*.weight", "stem.weight"),
            ("**.bn*.*", "a.b.bn2.bias"),
            ("a.**.b.**.c", "a.x.b.y.z.c"),
            ("**", ""),
            ("w*_*", "w1_a_b"),
            ("*é*", "aéb"),
        ];
        seeds.map(|(pattern, name)| join(pattern.as_bytes(), name.as_bytes())).to_vec()
    }

    fn words(&self) -> &'static [&'static str] {
        &["*", "**", ".", ".**.", "*.*", "a", "weight", "é"]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        // Repeated wildcards and near matches, which take a backtracking matcher exponential time.
        let count = 1 << rng.u32(..8);
        let (pattern, name) = match rng.u8(..4) {
            0 => ("**.".repeat(count) + "b", "a.".repeat(4 * count) + "c"),
            1 => ("*a".repeat(count) + "b", "a".repeat(4 * count)),
            2 => ("**.*a*.".repeat(count), ".".repeat(64 * count)),
            _ => {
                let (pattern, name) = split(input);
                let (mut pattern, name) = (pattern.to_vec(), name.to_vec());
                mutate::bytes(&mut pattern, rng);
                pattern.truncate(1 << 15);
                *input = join(&pattern, &name);
                return;
            }
        };
        *input = join(pattern.as_bytes(), name.as_bytes());
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}
