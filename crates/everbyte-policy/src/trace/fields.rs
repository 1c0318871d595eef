//! Numbers in text, with errors that name the field.

use super::error::{Problem, shortened};

/// Returns the next field, which must be there.
pub(crate) fn next<'a>(
    fields: &mut impl Iterator<Item = &'a str>,
    field: &'static str,
) -> Result<&'a str, Problem> {
    fields.next().map(str::trim).ok_or(Problem::Missing { field })
}

/// Parses a whole number of at least 0.
pub(crate) fn number(text: &str, field: &'static str) -> Result<u64, Problem> {
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
        assert!(scaled(u64::MAX, 2, "place").is_err());
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
