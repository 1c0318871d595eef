//! Sizes as people read them.

/// Writes a size in the largest unit not above the size, with one decimal if the size is not a
/// multiple of the unit.
#[must_use]
pub fn show_size(bytes: u64) -> String {
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
