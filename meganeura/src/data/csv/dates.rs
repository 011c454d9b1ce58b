//! Dates and times in cells, as in ISO 8601 and RFC 3339.

/// The number of days from 1970-01-01, midnight, to a date with or without a time: `2026-03-01`, `2026-03-01 06:00`,
/// `2026-03-01T06:00:00.5+02:00`. A time without an offset is taken as it is. `None` if the text is no such date.
pub(super) fn days(text: &str) -> Option<f64> {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let days = of_date(date)? as f64;
    Some(days + time.map_or(Some(0.0), of_time)? / 86_400.0)
}

/// The number of a text of this many digits.
fn number(text: &str, digits: usize) -> Option<i64> {
    (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// The days from 1970-01-01 to a date of the Gregorian calendar.
fn of_date(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let [year, month, day] =
        [(parts.next()?, 4), (parts.next()?, 2), (parts.next()?, 2)].map(|(part, digits)| number(part, digits));
    let (year, month, day) = (year?, month?, day?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = lengths.get(..usize::try_from(month - 1).ok()?)?;
    if parts.next().is_some() || !(1..=*lengths.get(before.len())?).contains(&day) {
        return None;
    }
    // Leap days of the years before this one.
    let leaps = |year: i64| (year - 1).div_euclid(4) - (year - 1).div_euclid(100) + (year - 1).div_euclid(400);
    Some((year - 1970) * 365 + leaps(year) - leaps(1970) + before.iter().sum::<i64>() + day - 1)
}

/// The seconds from midnight to a time, which may have an offset: `06:00`, `06:00:00.5`, `06:00Z`, `06:00-03:30`.
fn of_time(text: &str) -> Option<f64> {
    let clock = |text: &str| {
        let (hours, minutes) = text.split_once(':')?;
        let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
        (hours < 24 && minutes < 60).then_some(60 * (60 * hours + minutes))
    };
    let (time, offset) = match text.find(['Z', 'z', '+', '-']) {
        Some(at) if text[at..].eq_ignore_ascii_case("z") => (&text[..at], 0),
        Some(at) => {
            (&text[..at], if text[at..].starts_with('-') { -clock(&text[at + 1..])? } else { clock(&text[at + 1..])? })
        }
        None => (text, 0),
    };
    let (clock_part, seconds) = match time.get(5..).filter(|rest| !rest.is_empty()) {
        Some(rest) => (&time[..5], rest.strip_prefix(':')?),
        None => (time, "00"),
    };
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    // A leap second is the last of its minute.
    if !is_fraction || number(whole, 2)? > 60 {
        return None;
    }
    Some((clock(clock_part)? - offset) as f64 + seconds.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_become_days() {
        for (text, expected) in [
            ("1970-01-01", 0.0),
            ("1970-03-01", 59.0),
            ("2000-02-29", 11_016.0),
            ("2000-03-01", 11_017.0),
            ("2026-11-30", 20_787.0),
            ("1969-12-31", -1.0),
            ("1900-03-01", -25_508.0),
            ("0001-01-01", -719_162.0),
            ("1970-01-02T06:00", 1.25),
            ("1970-01-02 06:00:00", 1.25),
            ("1970-01-02T06:00:43.2Z", 1.2505),
            ("1970-01-02t06:00:00+06:00", 1.0),
            ("1970-01-01T21:30-02:30", 1.0),
            ("2016-12-31T23:59:60Z", 17_167.0),
        ] {
            let found = days(text).unwrap_or_else(|| panic!("{text}"));
            assert!((found - expected).abs() < 1e-9, "{text}: {found}");
        }
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let mut next = days("1895-01-01").unwrap();
        for year in 1895..2105 {
            for month in 1..=12 {
                for day in 1..=31 {
                    if let Some(found) = days(&format!("{year:04}-{month:02}-{day:02}")) {
                        assert_eq!(found, next, "{year}-{month}-{day}");
                        next += 1.0;
                    }
                }
            }
        }
        // 210 years, of which 2000 is a leap year and 1900 and 2100 are none.
        assert_eq!(next - days("1895-01-01").unwrap(), 210.0 * 365.0 + 51.0);
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            "1",
            "2026",
            "2026-3-1",
            "26-03-01",
            "2026-00-10",
            "2026-13-01",
            "2026-02-29",
            "2026-04-31",
            "2026-01-00",
            "2026-03-01-",
            "2026-03-01T",
            "2026-03-01T6:00",
            "2026-03-01T24:00",
            "2026-03-01T06:60",
            "2026-03-01T06:00:61",
            "2026-03-01T06:00:0",
            "2026-03-01T06:00:00.",
            "2026-03-01T06:00+2",
            "2026-03-01T06:00ZZ",
            "01/03/2026",
            "2026-03-01T06:00:00.5e3",
            "2026-03-01TÄ6:00",
            "+026-03-01",
            "2026-03-01T06:00:+0",
        ] {
            assert_eq!(days(text), None, "{text:?}");
        }
    }
}
