//! Dates for chat templates: the part of `strftime` that they use, in UTC.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// Weekdays from Thursday, the first day of 1970.
const WEEKDAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const SECONDS_PER_DAY: u64 = 86_400;

/// Formats the time `seconds` after 1970-01-01 UTC; unknown `%` sequences are kept.
pub(super) fn format_utc(seconds: u64, format: &str) -> String {
    let (day_number, second) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
    let (year, month, day) = civil_date(day_number);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(day_number % 7) as usize];
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += weekday,
            Some('a') => text += &weekday[..3],
            Some('H') => text += &format!("{:02}", second / 3600),
            Some('M') => text += &format!("{:02}", second / 60 % 60),
            Some('S') => text += &format!("{:02}", second % 60),
            Some('%') => text.push('%'),
            other => text.extend(['%'].into_iter().chain(other)),
        }
    }
    text
}

/// Year, month (1..=12) and day (1..=31) of the Gregorian calendar, `days` after 1970-01-01.
///
/// Computed in years that begin in March, so that the leap day is the last of the year: see Howard
/// Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // From 0000-03-01.
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    #[test]
    fn known_moments() {
        assert_eq!(format_utc(0, "%A %d %B %Y %H:%M:%S"), "Thursday 01 January 1970 00:00:00");
        assert_eq!(format_utc(951_827_696, "%a %d %b %y %H:%M:%S"), "Tue 29 Feb 00 12:34:56");
        assert_eq!(format_utc(1_721_952_000, "%d %b %Y"), "26 Jul 2024");
        assert_eq!(format_utc(4_107_542_399, "%Y-%m-%d"), "2100-02-28");
        assert_eq!(format_utc(4_107_542_400, "%Y-%m-%d"), "2100-03-01");
    }

    #[test]
    fn unknown_sequences_are_kept() {
        assert_eq!(format_utc(0, "100%% %Q %"), "100% %Q %");
    }
}
