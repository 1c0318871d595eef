//! Dates and times of the calendar.

const DAY: i128 = 24 * 60 * 60;
/// Days of 400 years, after which the calendar begins again.
const ERA_DAYS: i128 = 146_097;
/// Days from the first of March of the year 0 to 1970.
const TO_1970: i128 = 719_468;

/// Returns the date and time in UTC of a moment in seconds since 1970, as `2000-02-29 23:59:59`.
#[must_use]
pub fn utc(unix_s: i64) -> String {
    let unix_s = i128::from(unix_s);
    // Euclidean: dates before 1970 count forwards within their day.
    let (days, second) = (unix_s.div_euclid(DAY) + TO_1970, unix_s.rem_euclid(DAY));
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March.
    let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let leap_days = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i128::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, shown) in [
            (-2_147_483_648, "1901-12-13 20:45:52"),
            (-1, "1969-12-31 23:59:59"),
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_799, "2000-02-29 23:59:59"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_798_761_599, "2026-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (15_032_385_535, "2446-05-10 22:38:55"),
        ] {
            assert_eq!(utc(seconds), shown);
        }
    }
}
