//! Schedules as text: a name, and numbers or other schedules in parentheses.

use std::fmt;
use std::str::FromStr;

use super::{Form, Schedule};
use crate::error::{bail, here, shortened};
use crate::{Error, Result};

/// The description that [`Schedule::from_str`] reads: `then(10, constant(0.1), exponential(0.1, 0.9))`
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(value) => write!(f, "constant({value:?})"),
            Self::Linear { from, to, steps } => write!(f, "linear({from:?}, {to:?}, {steps})"),
            Self::Step { from, factor, every } => write!(f, "step({from:?}, {factor:?}, {every})"),
            Self::MultiStep { from, factor, milestones } => {
                write!(f, "multi_step({from:?}, {factor:?}")?;
                milestones.iter().try_for_each(|milestone| write!(f, ", {milestone}"))?;
                write!(f, ")")
            }
            Self::Exponential { from, factor } => write!(f, "exponential({from:?}, {factor:?})"),
            Self::Cosine { from, steps, floor } => write!(f, "cosine({from:?}, {steps}, {floor:?})"),
            Self::CosineRestarts { from, steps, growth, floor } => {
                write!(f, "cosine_restarts({from:?}, {steps}, {growth}, {floor:?})")
            }
            Self::Polynomial { from, steps, power, floor } => {
                write!(f, "polynomial({from:?}, {steps}, {power:?}, {floor:?})")
            }
            Self::OneCycle { peak, steps, share, division, last_division } => {
                write!(f, "one_cycle({peak:?}, {steps}, {share:?}, {division:?}, {last_division:?})")
            }
            Self::Warmup(steps, next) => write!(f, "warmup({steps}, {next})"),
            Self::Then(steps, first, next) => write!(f, "then({steps}, {first}, {next})"),
        }
    }
}

impl FromStr for Schedule {
    type Err = Error;

    /// Parses a description. Numbers are written as in Rust.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](crate::ErrorKind::Argument), which names what was expected and what was found.
    #[track_caller]
    fn from_str(text: &str) -> Result<Self> {
        here(|| {
            let mut reader = Reader::new(text);
            let form = reader.form(0)?;
            reader.expect_end()?;
            Ok(Self(form))
        })
    }
}

/// A reader of names, numbers and punctuation, one by one.
pub(super) struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { rest: text }
    }

    fn form(&mut self, depth: usize) -> Result<Form> {
        // A text must not exhaust the stack.
        if depth > 64 {
            bail!(Argument, "schedules are nested more than 64 deep");
        }
        let name = self.word();
        self.expect('(')?;
        let form = match name {
            "constant" => Form::Constant(self.number()?),
            "linear" => Form::Linear { from: self.number()?, to: self.next()?, steps: self.next()? },
            "step" => Form::Step { from: self.number()?, factor: self.next()?, every: self.next()? },
            "multi_step" => {
                let (from, factor) = (self.number()?, self.next()?);
                let mut milestones = Vec::new();
                while self.rest.trim_start().starts_with(',') {
                    milestones.push(self.next()?);
                }
                Form::MultiStep { from, factor, milestones }
            }
            "exponential" => Form::Exponential { from: self.number()?, factor: self.next()? },
            "cosine" => Form::Cosine { from: self.number()?, steps: self.next()?, floor: self.next()? },
            "cosine_restarts" => Form::CosineRestarts {
                from: self.number()?,
                steps: self.next()?,
                growth: self.next()?,
                floor: self.next()?,
            },
            "polynomial" => {
                Form::Polynomial { from: self.number()?, steps: self.next()?, power: self.next()?, floor: self.next()? }
            }
            "one_cycle" => Form::OneCycle {
                peak: self.number()?,
                steps: self.next()?,
                share: self.next()?,
                division: self.next()?,
                last_division: self.next()?,
            },
            "warmup" => Form::Warmup(self.number()?, self.inner(depth)?),
            "then" => Form::Then(self.number()?, self.inner(depth)?, self.inner(depth)?),
            _ => bail!(Argument, "no schedule is called `{}`", shortened(name)),
        };
        self.expect(')')?;
        Ok(form)
    }

    fn inner(&mut self, depth: usize) -> Result<Box<Form>> {
        self.expect(',')?;
        self.form(depth + 1).map(Box::new)
    }

    /// A number after a comma.
    pub(super) fn next<N: FromStr>(&mut self) -> Result<N> {
        self.expect(',')?;
        self.number()
    }

    pub(super) fn number<N: FromStr>(&mut self) -> Result<N> {
        let word = self.word();
        // Rust allows underscores in long numbers.
        let Ok(number) = word.replace('_', "").parse() else {
            let (word, rest) = (shortened(word), shortened(self.rest));
            bail!(Argument, "a schedule has `{word}` where a number should be, before `{rest}`");
        };
        Ok(number)
    }

    /// The text up to the next punctuation.
    pub(super) fn word(&mut self) -> &'t str {
        let end = self.rest.find(['(', ')', ',']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.trim()
    }

    pub(super) fn expect(&mut self, mark: char) -> Result<()> {
        let Some(rest) = self.rest.trim_start().strip_prefix(mark) else {
            bail!(Argument, "a schedule has `{}` where `{mark}` should be", shortened(self.rest));
        };
        self.rest = rest;
        Ok(())
    }

    pub(super) fn expect_end(&self) -> Result<()> {
        if !self.rest.trim().is_empty() {
            bail!(Argument, "`{}` follows the schedule", shortened(self.rest));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn messages_are_short_for_any_text() {
        let long = "é".repeat(10_000);
        for text in [&long, &format!("{long}("), &format!("constant({long})"), &format!("constant(1){long}")] {
            let error = text.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.len() < 600, "{} bytes", error.len());
        }
    }

    #[test]
    fn schedules_round_trip_through_text() {
        for schedule in [
            Schedule::constant(1e-300),
            Schedule::linear(-0.1, 1.0 / 3.0, 7),
            Schedule::step(0.1, 0.5, u64::MAX),
            Schedule::multi_step(0.1, 0.1, &[]),
            Schedule::multi_step(0.1, 0.1, &[30, 60, 90]),
            Schedule::exponential(f64::INFINITY, 0.99),
            Schedule::cosine(1e-3, 100_000, 1e-6).warmup(1000),
            Schedule::cosine_restarts(0.1, 10, 2, 1e-4),
            Schedule::polynomial(0.01, 5, 0.9, 0.0),
            Schedule::one_cycle(0.1, 10).then(10, Schedule::constant(0.1).warmup(3).then(7, Schedule::constant(0.2))),
        ] {
            assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        }
        let loose = " then ( 10,constant( 1e-1 ) , exponential(.1,0.9) )\n";
        let expected = Schedule::constant(0.1).then(10, Schedule::exponential(0.1, 0.9));
        assert_eq!(loose.parse::<Schedule>().unwrap(), expected);
    }

    #[test]
    fn nonsense_is_an_error_that_quotes_it() {
        let deep = format!("{}constant(1){}", "warmup(1, ".repeat(100_000), ")".repeat(100_000));
        for (text, message) in [
            ("", "where `(` should be"),
            ("cosine", "where `(` should be"),
            ("sine(1)", "no schedule is called `sine`"),
            ("constant()", "a schedule has `` where a number should be"),
            ("constant(one)", "`one` where a number should be"),
            ("step(0.1, 0.5, -3)", "`-3` where a number should be"),
            ("step(0.1, 0.5)", "has `)` where `,` should be"),
            ("constant(1", "has `` where `)` should be"),
            ("constant(1, 2)", "has `, 2)` where `)` should be"),
            ("constant(1) + 1", "` + 1` follows"),
            ("warmup(1, 2)", "where `(` should be"),
            (&deep, "more than 64"),
        ] {
            let error = text.parse::<Schedule>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
