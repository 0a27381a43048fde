//! Comparison of a downloaded file with what the server states about it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use indicatif::ProgressBar;
use sha1::Sha1;
use sha2::Sha256;
use sha2::digest::Update;
use sha2::digest::{Digest, FixedOutput};

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// The digest that an ETag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    /// Of large files: the SHA-256 of the content.
    Sha256,
    /// Of small files: git's, the SHA-1 of `blob SIZE`, a zero byte and the content.
    GitSha1,
}

impl Checksum {
    /// The digest that `etag` is, by its length.
    pub(super) fn of(etag: &str) -> Option<Checksum> {
        match etag.len() {
            _ if !etag.chars().all(|c| c.is_ascii_hexdigit()) => None,
            64 => Some(Checksum::Sha256),
            40 => Some(Checksum::GitSha1),
            _ => None,
        }
    }

    /// Name for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Checksum::Sha256 => "SHA-256",
            Checksum::GitSha1 => "git SHA-1",
        }
    }

    /// The digest of `file` in hexadecimal; `bar` counts bytes.
    pub(super) fn digest(self, file: &Path, bar: &ProgressBar) -> io::Result<String> {
        let file = File::open(file)?;
        match self {
            Checksum::Sha256 => digest(Sha256::new(), file, bar),
            Checksum::GitSha1 => {
                let header = format!("blob {}\0", file.metadata()?.len());
                digest(Sha1::new().chain(header), file, bar)
            }
        }
    }
}

/// `hash` continued with the content of `file`.
fn digest(mut hash: impl FixedOutput, mut file: File, bar: &ProgressBar) -> io::Result<String> {
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => {
                let digest = hash.finalize_fixed();
                return Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect());
            }
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
    fn digests_are_those_of_the_standard_and_of_git() {
        let file = std::env::temp_dir().join(format!("trail-checksum-{}", std::process::id()));
        std::fs::write(&file, "abc").expect("written");
        for (checksum, expected) in [
            (Checksum::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            // printf abc | git hash-object --stdin
            (Checksum::GitSha1, "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"),
        ] {
            let digest = checksum.digest(&file, &ProgressBar::hidden()).expect("read");
            assert_eq!(digest, expected);
            assert_eq!(Checksum::of(&digest), Some(checksum));
        }
        std::fs::remove_file(file).expect("the test's own file");
        for etag in ["", "abc", &"x".repeat(64), &"x".repeat(40)] {
            assert_eq!(Checksum::of(etag), None);
        }
    }
}
