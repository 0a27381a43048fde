//! Comparison of a downloaded file with what the server states about it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// True if `etag` is a SHA-256 in hexadecimal, as that of large files; small ones have the SHA-1
/// of git, which covers a header as well.
pub(super) fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.chars().all(|c| c.is_ascii_hexdigit())
}

/// The SHA-256 of `file` in hexadecimal; `bar` counts bytes.
pub(super) fn sha256(file: &Path, bar: &ProgressBar) -> io::Result<String> {
    let (mut file, mut hash, mut piece) = (File::open(file)?, Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            bytes => {
                hash.update(&piece[..bytes]);
                bar.inc(bytes as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_standard() {
        let file = std::env::temp_dir().join(format!("trail-checksum-{}", std::process::id()));
        std::fs::write(&file, "abc").expect("written");
        let digest = sha256(&file, &ProgressBar::hidden()).expect("read");
        std::fs::remove_file(file).expect("the test's own file");
        assert_eq!(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(is_sha256(&digest) && !is_sha256(&digest[..40]) && !is_sha256(&"x".repeat(64)));
    }
}
