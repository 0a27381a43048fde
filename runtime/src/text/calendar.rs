//! Dates for chat templates: Python's `strftime` of a time without a time zone, in UTC.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

/// Directives of glibc, on which Python's are based, that jiff has with the same meaning.
const SHARED: &str = "AaBbCDdeFGgHhIjklMmnPpRSsTtUuVWwYy%";

/// Formats the time `seconds` after 1970-01-01 UTC; unknown `%` sequences are kept.
///
/// # Errors
///
/// The time or the format is out of the library's range.
pub(super) fn format_utc(seconds: u64, format: &str) -> Result<String, String> {
    let timestamp = i64::try_from(seconds).map_err(|error| error.to_string())?;
    let timestamp = Timestamp::from_second(timestamp).map_err(|error| error.to_string())?;
    let time = timestamp.to_zoned(TimeZone::UTC);
    strtime::format(translated(format), &time).map_err(|error| error.to_string())
}

/// `format` in jiff's directives: those of the C locale are written out, and `%` is doubled where
/// it begins no directive of glibc.
fn translated(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out += before;
        let flags_end = after.len() - after.trim_start_matches(['-', '_', '0', '^', '#']).len();
        let width =
            after.len() - after[flags_end..].trim_start_matches(|c: char| c.is_ascii_digit()).len();
        // The modifiers of other calendars and digits mean nothing in the C locale.
        let begin = after.len() - after[width..].trim_start_matches(['E', 'O']).len();
        let Some(directive) = after[begin..].chars().next() else {
            out += "%%";
            rest = after;
            continue;
        };
        let end = begin + directive.len_utf8();
        // `#` changes the case: of names to capitals, of AM and PM to small letters.
        let (flags, changed) = match (after[..flags_end].contains('#'), directive) {
            (true, 'p') => (after[..flags_end].replace('#', ""), 'P'),
            (true, _) => (after[..flags_end].replace('#', "^"), directive),
            (false, _) => (after[..flags_end].to_owned(), directive),
        };
        match directive {
            'c' => out += "%a %b %e %H:%M:%S %Y",
            'x' => out += "%m/%d/%y",
            'X' => out += "%H:%M:%S",
            'r' => out += "%I:%M:%S %p",
            // Microseconds, which the caller does not have, and the time zone, as there is none.
            'f' => out += "000000",
            'Z' | 'z' => {}
            _ if SHARED.contains(directive) => {
                out += &format!("%{flags}{}{changed}", &after[flags_end..width]);
            }
            _ => out.extend(["%%", &after[..end]]),
        }
        rest = &after[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    /// Python's `datetime.strftime` (3.11, glibc, locale C) printed these.
    #[test]
    fn known_moments() {
        for (seconds, format, text) in [
            (0, "%A %d %B %Y %H:%M:%S", "Thursday 01 January 1970 00:00:00"),
            (951_827_696, "%a %d %b %y %H:%M:%S", "Tue 29 Feb 00 12:34:56"),
            (1_721_952_000, "%-d %B %Y, %-m %-H %e", "26 July 2024, 7 0 26"),
            (
                1_721_952_000,
                "%c|%x|%X|%D|%F|%T|%R|%r",
                "Fri Jul 26 00:00:00 2024|07/26/24|00:00:00|07/26/24|2024-07-26|00:00:00|00:00|12:00:00 AM",
            ),
            (
                951_827_696,
                "%j %U %W %w %u %V %G %g %C %I %p %f",
                "060 09 09 2 2 09 2000 00 20 12 PM 000000",
            ),
            (1_735_603_200, "%G-W%V-%u %j", "2025-W01-2 366"),
            (0, "[%Z%z] %h %k %l %s%n%t.", "[] Jan  0 12 0\n\t."),
            (
                951_827_696,
                "%#B %#p %^a %#a %5d %Ey %Od %_5m",
                "FEBRUARY pm TUE TUE 00029 00 29     2",
            ),
            (4_107_542_399, "%Y-%m-%d", "2100-02-28"),
            (4_107_542_400, "%Y-%m-%d", "2100-03-01"),
        ] {
            assert_eq!(format_utc(seconds, format).as_deref(), Ok(text), "{format}");
        }
    }

    #[test]
    fn unknown_sequences_are_kept() {
        let text = "100%% %Q %N %-q %é %";
        assert_eq!(format_utc(0, text).as_deref(), Ok("100% %Q %N %-q %é %"));
    }
}
