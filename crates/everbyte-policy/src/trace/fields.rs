//! Numbers in text, with errors that name the field.

use super::RequestOp;
use super::error::{Problem, shortened};

/// Fields with a comma between them. Fields are short: looking at each byte is faster than a search
/// that has to be set up.
pub(crate) struct Commas<'a>(Option<&'a str>);

impl<'a> Commas<'a> {
    pub(crate) fn of(line: &'a str) -> Self {
        Self(Some(line))
    }
}

impl<'a> Iterator for Commas<'a> {
    type Item = &'a str;

    #[inline]
    fn next(&mut self) -> Option<&'a str> {
        let text = self.0?;
        let Some(end) = text.bytes().position(|byte| byte == b',') else { return self.0.take() };
        self.0 = Some(&text[end + 1..]);
        Some(&text[..end])
    }
}

/// Returns the next field, which must be there.
#[inline]
pub(crate) fn next<'a>(
    fields: &mut impl Iterator<Item = &'a str>,
    field: &'static str,
) -> Result<&'a str, Problem> {
    fields.next().map(trimmed).ok_or(Problem::Missing { field })
}

/// Expects the end of the fields.
#[inline]
pub(crate) fn end<'a>(
    fields: &mut impl Iterator<Item = &'a str>,
    wanted: &'static str,
) -> Result<(), Problem> {
    match fields.next() {
        Some(more) => Err(Problem::field("end of the line", more, wanted)),
        None => Ok(()),
    }
}

/// Parses R or W, in either case.
#[inline]
pub(crate) fn read_or_write(text: &str, field: &'static str) -> Result<RequestOp, Problem> {
    match text {
        "R" | "r" => Ok(RequestOp::Read),
        "W" | "w" => Ok(RequestOp::Write),
        other => Err(Problem::field(field, other, "R or W")),
    }
}

/// Returns the text without the white space around it, of which there mostly is none.
#[inline]
pub(crate) fn trimmed(text: &str) -> &str {
    match text.as_bytes() {
        [b'!'..=b'~', .., b'!'..=b'~'] | [b'!'..=b'~'] | [] => text,
        _ => text.trim(),
    }
}

/// Returns the number of up to 19 digits. It always fits.
#[inline]
fn digits(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if !(1..=19).contains(&bytes.len()) {
        return None;
    }
    bytes.iter().try_fold(0, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then_some(number * 10 + u64::from(digit))
    })
}

/// Parses a whole number of at least 0.
#[inline]
pub(crate) fn number(text: &str, field: &'static str) -> Result<u64, Problem> {
    digits(text).map_or_else(|| unusual_number(text, field), Ok)
}

#[cold]
fn unusual_number(text: &str, field: &'static str) -> Result<u64, Problem> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::field(field, text, "a whole number"));
    }
    let value = shortened(text);
    match text.starts_with('-') {
        true => Err(Problem::Negative { field, value }),
        false => Err(Problem::TooLarge { field, value }),
    }
}

/// Converts a number of units to bytes or ns, `scale` of which are a unit.
pub(crate) fn scaled(number: u64, scale: u64, field: &'static str) -> Result<u64, Problem> {
    let too_large = || Problem::TooLarge { field, value: number.to_string() };
    number.checked_mul(scale).ok_or_else(too_large)
}

/// Parses a decimal number of units, such as `1.25`, into parts of a unit. `scale`, a power of ten,
/// is the number of parts in a unit; digits beyond that are dropped.
pub(crate) fn decimal(text: &str, scale: u64, field: &'static str) -> Result<u64, Problem> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let mut parts = scaled(number(whole, field)?, scale, field)?;
    let mut digit_scale = scale;
    for digit in fraction.bytes() {
        if !digit.is_ascii_digit() {
            return Err(Problem::field(field, text, "a decimal number"));
        }
        digit_scale /= 10;
        let more = u64::from(digit - b'0') * digit_scale;
        let too_large = || Problem::TooLarge { field, value: shortened(text) };
        parts = parts.checked_add(more).ok_or_else(too_large)?;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_or_explained() {
        assert_eq!(number(" 17 ", "size"), Ok(17));
        assert_eq!(number("18446744073709551615", "size"), Ok(u64::MAX));
        let negative = Problem::Negative { field: "size", value: "-5".into() };
        assert_eq!(number("-5", "size"), Err(negative));
        assert!(matches!(number("18446744073709551616", "size"), Err(Problem::TooLarge { .. })));
        for wrong in ["", "-", "x", "0x10", "1.5", "1e3"] {
            assert!(matches!(number(wrong, "size"), Err(Problem::Field { .. })), "{wrong}");
        }
        for (text, value) in [("9999999999999999999", 9_999_999_999_999_999_999), ("+5", 5)] {
            assert_eq!(number(text, "size"), Ok(value));
        }
        assert!(scaled(u64::MAX, 2, "place").is_err());
    }

    proptest! {
        #[test]
        fn fields_are_those_of_the_library(line in "[a-z0-9 ,\t\u{e9}-]{0,40}") {
            prop_assert!(Commas::of(&line).eq(line.split(',')));
            for field in line.split(',') {
                prop_assert_eq!(trimmed(field), field.trim());
                prop_assert_eq!(number(field, "size").ok(), field.trim().parse().ok());
            }
        }
    }

    #[test]
    fn decimals_are_exact() {
        let seconds = |text| decimal(text, 1_000_000_000, "time");
        assert_eq!(seconds("0.000000001"), Ok(1));
        assert_eq!(seconds("12.5"), Ok(12_500_000_000));
        assert_eq!(seconds("3"), Ok(3_000_000_000));
        assert_eq!(seconds("1.0000000019"), Ok(1_000_000_001));
        for wrong in ["", ".", "-1.0", "1.x", "99999999999999999999.0", "18446744073.9999999999"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
