//! Files in which a command leaves its results.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Key of the member, in a JSON object or in an SVG comment, that names the program.
pub const GENERATOR: &str = "generator";

/// A result file, checked before the run that makes it: a run whose results cannot be stored is not
/// begun, and no file of another origin is replaced.
#[derive(Clone, Debug)]
pub struct OutputFile {
    path: PathBuf,
    options: OpenOptions,
}

impl OutputFile {
    /// Claims `path`, whose folder is created. A file that is there must be empty or the result of
    /// an earlier run ([`generator`]), unless `force`.
    pub fn claim(path: PathBuf, force: bool) -> Result<OutputFile, Error> {
        OutputFile { path, options: File::options() }.claimed(force)
    }

    /// Claims `path` like [`claim`](Self::claim), for prompts or answers: see [`private`].
    pub fn claim_private(path: PathBuf, force: bool) -> Result<OutputFile, Error> {
        OutputFile { path, options: private() }.claimed(force)
    }

    fn claimed(self, force: bool) -> Result<OutputFile, Error> {
        let file = self;
        let name = file.path.display();
        match ends(&file.path) {
            Ok(bytes) if force || bytes.is_empty() || is_generated(&bytes) => {}
            Ok(_) => {
                return Err(Error::usage(format!(
                    "{name} is there, and no result of an earlier run: choose another path, or \
                     replace it with --force"
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(file.unwritable(error)),
        }
        let folder = file.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| file.options.clone().append(true).create(true).open(&file.path))
            .map_err(|error| file.unwritable(error))?;
        Ok(file)
    }

    /// Returns true if the file at `path` is a log of this program with more than its header, the
    /// first line.
    pub fn has_entries(path: &Path) -> bool {
        ends(path).is_ok_and(|bytes| is_generated(&bytes) && bytes.lines().nth(1).is_some())
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content, that of a file at once where its folder allows it: one whose write
    /// fails keeps what it had.
    pub fn write(&self, content: &(impl AsRef<[u8]> + ?Sized)) -> Result<(), Error> {
        let write = |file: &mut File| file.write_all(content.as_ref());
        let is_file = fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_file());
        // A device or a pipe cannot be replaced, nor should a link be.
        let written = if is_file { self.replace(&write) } else { self.overwrite(&write) };
        written.map_err(|error| self.unwritable(error))
    }

    fn overwrite(&self, write: &dyn Fn(&mut File) -> io::Result<()>) -> io::Result<()> {
        let mut options = self.options.clone();
        write(&mut options.write(true).create(true).truncate(true).open(&self.path)?)
    }

    /// Writes a file beside the present one, which then takes its name and permissions. A folder
    /// that takes no other file, or a file that is mounted, has the present one written over.
    fn replace(&self, write: &dyn Fn(&mut File) -> io::Result<()>) -> io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = self.path.with_file_name(name);
        let permissions = fs::metadata(&self.path)?.permissions();
        // Of an earlier process with the same number.
        _ = fs::remove_file(&part);
        let opened = self.options.clone().write(true).create_new(true).open(&part);
        let opened = opened.and_then(|file| file.set_permissions(permissions).map(|()| file));
        let renamed = match opened {
            Ok(mut file) => write(&mut file)
                .and_then(|()| file.sync_all())
                .map(|()| fs::rename(&part, &self.path).is_ok()),
            Err(_) => Ok(false),
        };
        if !matches!(renamed, Ok(true)) {
            _ = fs::remove_file(&part);
        }
        if renamed? { Ok(()) } else { self.overwrite(write) }
    }

    fn unwritable(&self, error: io::Error) -> Error {
        let name = self.path.display();
        Error::failed(format!("cannot write {name}: {error}; choose another path"))
    }
}

/// Options for a file with prompts or answers: a new one can be read by its owner alone. On Windows
/// it has the permissions of its folder.
pub fn private() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut))]
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The value of [`GENERATOR`] in results of `command`.
pub fn generator(command: &str) -> String {
    format!("trail-rt {command}")
}

/// An SVG `picture` with a comment that names the `command` it was drawn by.
pub fn signed_svg(picture: &str, command: &str) -> String {
    let end = picture.rfind("</svg>").unwrap_or(picture.len());
    let (body, rest) = picture.split_at(end);
    format!("{body}<!-- \"{GENERATOR}\": \"{}\" -->\n{rest}", generator(command))
}

/// Bytes of a file's beginning and end between which a [`GENERATOR`] member is not looked for: a
/// decision log may be larger than the memory.
const HEAD_BYTES: u64 = 1 << 16;
const TAIL_BYTES: u64 = 1 << 10;

/// The beginning and the end of the file at `path`. Nothing of a device, which may have no end.
fn ends(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Ok(Vec::new());
    }
    let (mut file, mut bytes) = (File::open(path)?, Vec::new());
    (&mut file).take(HEAD_BYTES).read_to_end(&mut bytes)?;
    let rest = metadata.len().saturating_sub(HEAD_BYTES).min(TAIL_BYTES);
    file.seek(SeekFrom::Start(metadata.len() - rest))?;
    file.take(rest).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// True if a file holds a [`GENERATOR`] member of this program, with or without a space before the
/// value.
fn is_generated(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let key = format!("\"{GENERATOR}\":");
    text.split(&key).skip(1).any(|value| value.trim_start().starts_with("\"trail-rt "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_replaced_and_other_files_are_not() {
        let folder = std::env::temp_dir().join(format!("trail-output-file-{}", std::process::id()));
        let path = folder.join("new").join("result.json");
        let first = OutputFile::claim(path.clone(), false).expect("nothing is there");
        OutputFile::claim(path.clone(), false).expect("an empty file, of a run that failed");
        for text in
            ["{\"generator\":\"trail-rt demo\"}", "{\n  \"generator\": \"trail-rt demo\"\n}"]
        {
            first.write(text).expect("written");
            OutputFile::claim(path.clone(), false).expect("a result");
        }
        first.write(&signed_svg("<svg>\n</svg>\n", "demo")).expect("written");
        let file = OutputFile::claim(path.clone(), false).expect("a picture");
        for text in ["mine", "{\"generator\": \"another\"}", "{\"text\": \"trail-rt demo\"}"] {
            file.write(text).expect("written");
            let error = OutputFile::claim(path.clone(), false).expect_err("another file");
            assert_eq!(error.code(), 2);
            assert!(error.to_string().contains("--force"), "{error}");
            assert_eq!(fs::read_to_string(&path).expect("text"), text);
            OutputFile::claim(path.clone(), true).expect("forced");
        }
        fs::remove_dir_all(folder).expect("the test's own folder");
    }

    #[test]
    fn a_write_that_fails_keeps_the_earlier_result_and_one_that_succeeds_its_permissions() {
        let folder = std::env::temp_dir().join(format!("trail-replaced-{}", std::process::id()));
        let path = folder.join("result.json");
        let file = OutputFile::claim_private(path.clone(), false).expect("nothing is there");
        file.write("first").expect("written");
        let full = |file: &mut File| {
            file.write_all(b"sec")?;
            Err(ErrorKind::StorageFull.into())
        };
        assert!(file.replace(&full).is_err());
        assert_eq!(fs::read_to_string(&path).expect("text"), "first");
        let part = folder.join(format!("result.json.{}.part", std::process::id()));
        fs::create_dir(&part).expect("in the way");
        file.write("without a part").expect("written over");
        assert_eq!(fs::read_to_string(&path).expect("text"), "without a part");
        fs::remove_dir(&part).expect("empty");
        file.write("third").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("text"), "third");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "no part is left");
        fs::remove_dir_all(folder).expect("the test's own folder");
    }

    #[test]
    fn a_large_result_is_known_by_its_ends_and_a_device_is_not_read() {
        let path = std::env::temp_dir().join(format!("trail-large-file-{}", std::process::id()));
        let filler = "x".repeat(3 << 16);
        let marked = format!("\"{GENERATOR}\": \"{}\"", generator("demo"));
        for (text, is_ours) in [
            (format!("{marked}{filler}"), true),
            (format!("{filler}{marked}"), true),
            (filler.clone(), false),
        ] {
            fs::write(&path, text).expect("written");
            assert_eq!(OutputFile::claim(path.clone(), false).is_ok(), is_ours);
        }
        fs::remove_file(path).expect("the test's own file");
        OutputFile::claim("/dev/zero".into(), false).expect("a device without an end");
    }

    #[test]
    fn a_path_that_cannot_be_written_is_a_failure() {
        for path in ["/dev/null/x/result.json", "/proc/result.json", "/tmp"] {
            let error = OutputFile::claim(path.into(), true).expect_err(path);
            assert_eq!(error.code(), 1, "{error}");
            assert!(error.to_string().starts_with("cannot write "), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_new_file_with_prompts_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("trail-private-{}", std::process::id()));
        let file = OutputFile::claim_private(path.clone(), false).expect("nothing is there");
        file.write("hi").expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        fs::remove_file(path).expect("the test's own file");
    }
}
