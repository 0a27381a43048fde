//! Files of one JSON object a line.

use std::io;
use std::path::Path;

use serde::de::IgnoredAny;
use trail_platform::read::read_up_to;

use crate::notice::notice;

/// Largest file read, MiB.
const MAX_MIB: u64 = 1024;

/// The text of the file at `path`. A last line without its end, that stops in the middle of a value
/// (a full disk, a program that was killed), is left out with a warning.
pub fn read_json_lines(path: &Path) -> io::Result<String> {
    let mut bytes = read_up_to(path, MAX_MIB)?;
    let last = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if is_torn(&bytes[last..]) {
        let lines = bytes[..last].iter().filter(|byte| **byte == b'\n').count();
        let name = path.display();
        notice(format_args!("warning: {name} is cut off: read up to line {lines}"));
        bytes.truncate(last);
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 from byte {at} on"))
    })
}

/// True for the beginning of a JSON value.
fn is_torn(line: &[u8]) -> bool {
    let parsed = serde_json::from_slice::<IgnoredAny>(line);
    !line.trim_ascii().is_empty() && parsed.is_err_and(|error| error.is_eof())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_left_out_and_any_other_is_kept() {
        let path = std::env::temp_dir().join(format!("trail-json-lines-{}", std::process::id()));
        for (text, expected) in [
            (&b"{}\n{\"a\":\"b"[..], Some("{}\n")),
            // Cut within a character.
            (b"{}\n{\"a\":\"caf\xc3", Some("{}\n")),
            (b"{\"a\":1", Some("")),
            (b"{}\n{\"a\":1}", Some("{}\n{\"a\":1}")),
            (b"{}\n  ", Some("{}\n  ")),
            // No beginning of a value, and a line with its end: what reads the lines says more.
            (b"{}\n{]", Some("{}\n{]")),
            (b"{\"a\n{}\n", Some("{\"a\n{}\n")),
            (b"{\"caf\xe9\":1}\n", None),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(read_json_lines(&path).ok().as_deref(), expected);
        }
        std::fs::remove_file(path).expect("the test's own file");
    }
}
