//! Files read whole, up to a bound.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reads the file at `path` whole. One of more than `max_mib` MiB, such as a device without an end,
/// is an error of [`ErrorKind::FileTooLarge`].
pub fn read_up_to(path: &Path, max_mib: u64) -> io::Result<Vec<u8>> {
    take_up_to(File::open(path)?, max_mib)
}

/// Reads the file at `path`, which must be UTF-8, like [`read_up_to`].
pub fn read_text(path: &Path, max_mib: u64) -> io::Result<String> {
    let bytes = read_up_to(path, max_mib)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(ErrorKind::InvalidData, format!("it is not UTF-8 from byte {at} on"))
    })
}

/// Reads `from` to its end, like [`read_up_to`].
pub fn take_up_to(from: impl Read, max_mib: u64) -> io::Result<Vec<u8>> {
    let (max, mut bytes) = (max_mib << 20, Vec::new());
    from.take(max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max {
        true => Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it has more than {max_mib} MiB, the most that is read of such a file"),
        )),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_itself_is_read_and_a_byte_more_is_refused() {
        let read = |bytes| take_up_to(io::repeat(b'x').take(bytes), 1);
        assert_eq!(read(1 << 20).expect("within").len(), 1 << 20);
        let error = read((1 << 20) + 1).expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("more than 1 MiB"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_without_an_end_is_refused() {
        let error = read_text(Path::new("/dev/zero"), 1).expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_text_is_utf_8() {
        let path = std::env::temp_dir().join(format!("trail-read-{}", std::process::id()));
        std::fs::write(&path, b"caf\xe9").expect("written");
        let error = read_text(&path, 1).expect_err("refused").to_string();
        assert_eq!(error, "it is not UTF-8 from byte 3 on");
        assert_eq!(read_up_to(&path, 1).expect("read"), b"caf\xe9");
        std::fs::remove_file(path).expect("the test's own file");
    }
}
