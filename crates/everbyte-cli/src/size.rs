//! Sizes and durations as people write and read them.
//!
//! Sizes count bytes. Suffixes are powers of 1024, with or without an i: this is the custom for
//! memory, and a pool is memory.

use std::time::Duration;

pub(crate) use everbyte::show_size;

/// Suffixes and their powers of 1024.
const SUFFIXES: [(char, u32); 4] = [('K', 1), ('M', 2), ('G', 3), ('T', 4)];
/// More decimals than anybody writes; so many keep the sums below in range.
const DECIMALS_MAX: usize = 12;

/// Reads a size such as `4096`, `512M`, `512MiB` or `1.5G`.
///
/// # Errors
/// The text has another form; the message names the accepted forms.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is no size: write a number of bytes, or one with K, M, G or T for powers of \
             1024, such as 512M or 1.5G"
        )
    };
    let (number, power) = split_unit(text.trim());
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > DECIMALS_MAX {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let parts: u64 = decimals.parse().map_err(|_| wrong())?;
    // At most 10^12 parts of at most 2^40 bytes, divided by a power of ten.
    let unit = 1_u128 << (10 * power);
    let scale = decimals.bytes().fold(1_u128, |scale, _| scale * 10);
    // In whole numbers: a float would round large sizes with decimals.
    let (fraction, rest) = (u128::from(parts) * unit / scale, u128::from(parts) * unit % scale);
    if rest != 0 {
        return Err(format!("{text:?} is not a whole number of bytes: write it in a smaller unit"));
    }
    u64::try_from(u128::from(whole) * unit + fraction)
        .map_err(|_| format!("{text:?} is too large: sizes are below 16777216T"))
}

/// The number in `text`, and the power of 1024 of the unit behind it.
fn split_unit(text: &str) -> (&str, u32) {
    for (letter, power) in SUFFIXES {
        // The bare letter first, then KB and KiB. A bare B is no unit of 1024.
        for rest in ["", "B", "IB"] {
            let unit = format!("{letter}{rest}");
            if let Some(number) = strip_suffix_of_any_case(text, &unit) {
                return (number, power);
            }
        }
    }
    (strip_suffix_of_any_case(text, "B").unwrap_or(text), 0)
}

fn strip_suffix_of_any_case<'t>(text: &'t str, suffix: &str) -> Option<&'t str> {
    let (rest, end) = text.split_at_checked(text.len().checked_sub(suffix.len())?)?;
    end.eq_ignore_ascii_case(suffix).then_some(rest)
}

/// Reads a duration such as `500ms`, `5s`, `2m` or `1h`. It is positive and has a unit: a bare
/// number would be taken for seconds by some and for milliseconds by others.
///
/// # Errors
/// The text has another form; the message names the accepted forms.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let split = units.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, *ms)));
    let number = split.and_then(|(digits, ms)| Some((digits.parse::<u64>().ok()?, ms)));
    let Some((number, unit_ms)) = number else {
        return Err(format!(
            "{text:?} is no duration: write a whole number and a unit, ms, s, m or h, such as 5s"
        ));
    };
    match number.checked_mul(unit_ms) {
        Some(ms @ 1..=86_400_000) => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text:?} is out of range: use 1ms to 24h")),
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
            ("512MB", 512 << 20),
            ("512kib", 512 << 10),
            ("1.5G", 3 << 29),
            ("0.5K", 512),
            ("1.0", 1),
            ("2.25TiB", 9 << 38),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_size_is_explained() {
        for text in [
            "",
            "M",
            "-1",
            "+1",
            "1Q",
            "0x10",
            "1 M",
            "iB",
            "1iB",
            "1Mi",
            "1BB",
            "1.G",
            ".5G",
            "1,5G",
            "1.2.3M",
            "1.5e3",
            "99999999999999999999",
            "1.1234567890123T",
            "\u{fc}",
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains("K, M, G or T") && error.contains(text), "{error}");
        }
        assert!(parse_size("16777216T").unwrap_err().contains("too large"));
        for text in ["0.5", "1.5B", "0.3K", "1.1G"] {
            assert!(parse_size(text).unwrap_err().contains("whole number of bytes"), "{text}");
        }
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
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["", "s", "0s", "5", "1.5s", "1d", "-5s", "2000m"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
