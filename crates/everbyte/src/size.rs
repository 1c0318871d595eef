//! Sizes and durations as people write and read them.
//!
//! Sizes count bytes, with suffixes that are powers of 1024.

use std::time::Duration;

/// Suffixes and the powers of 1024 that they stand for.
const SUFFIXES: [(char, u32); 5] = [('B', 0), ('K', 1), ('M', 2), ('G', 3), ('T', 4)];

/// Reads a size such as `4096`, `512M` or `1G`.
///
/// # Errors
/// What is accepted.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is no size: write a whole number of bytes, or one with K, M, G or T for \
             powers of 1024, such as 512M or 1G"
        )
    };
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper
        .strip_suffix("IB")
        .filter(|rest| rest.ends_with(['K', 'M', 'G', 'T']))
        .unwrap_or(&upper);
    let (digits, power) = SUFFIXES
        .iter()
        .find_map(|(suffix, power)| Some((upper.strip_suffix(*suffix)?, *power)))
        .unwrap_or((upper, 0));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(1 << (10 * power))
        .ok_or_else(|| format!("{text:?} is too large: sizes are below 16777216T"))
}

/// Writes a size in the largest unit that leaves at least 1, with one decimal where it counts.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (1..UNITS.len()).rev().find(|&power| bytes >> (10 * power) > 0).unwrap_or(0);
    let unit = 1_u64 << (10 * power);
    let (whole, rest) = (bytes / unit, bytes % unit);
    let tenths = u128::from(rest) * 10 / u128::from(unit);
    if power == 0 || (tenths == 0 && rest == 0) {
        format!("{whole} {}", UNITS[power])
    } else {
        format!("{whole}.{tenths} {}", UNITS[power])
    }
}

/// Reads a duration such as `5s`, `500ms`, `2m` or `5`, which means seconds. It is positive.
///
/// # Errors
/// What is accepted.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is no duration: write a whole number with ms, s or m, such as 5s");
    let (digits, unit_ms) = if let Some(digits) = text.strip_suffix("ms") {
        (digits, 1)
    } else if let Some(digits) = text.strip_suffix('m') {
        (digits, 60_000)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1000)
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    match number.checked_mul(unit_ms) {
        Some(ms @ 1..=86_400_000) => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text:?} is out of range: use 1ms to 24 hours (1440m)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1b", 1),
            ("1K", 1024),
            ("512M", 512 << 20),
            ("512MiB", 512 << 20),
            ("2g", 2 << 30),
            (" 3T ", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_explained() {
        for text in
            ["", "M", "1.5G", "-1", "+1", "1Q", "0x10", "1 M", "iB", "1iB", "99999999999999999999"]
        {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains("K, M, G or T") && error.contains(text), "{error}");
        }
        assert!(parse_size("16777216T").unwrap_err().contains("too large"));
    }

    #[test]
    fn sizes_are_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (512 << 20, "512 MiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "s", "0s", "1h", "-5s", "2000m"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
