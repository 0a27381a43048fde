//! Machine code of this project's kernels: the stand-in runs the text that it was assembled from,
//! which lies beside it in `ptx/out/`.

use std::path::{Path, PathBuf};

/// Bytes of an ELF header, and the offsets in it that give the file's size.
const HEADER: usize = 64;
const SECTIONS_AT: usize = 0x28;
const SECTION_BYTES: usize = 0x3a;
const SECTION_COUNT: usize = 0x3c;

/// The text of the cubin `image` for `target`, if it is one of this project's.
///
/// # Safety
/// `image` points to an ELF file.
pub(super) unsafe fn text(image: *const u8, target: &str) -> Option<String> {
    // SAFETY: an ELF file begins with its header.
    let header = unsafe { std::slice::from_raw_parts(image, HEADER) };
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | byte as usize)
    };
    // The headers of the sections are a cubin's last part but for those of its segments.
    let length = number(SECTIONS_AT, 8) + number(SECTION_BYTES, 2) * number(SECTION_COUNT, 2);
    // SAFETY: the caller's promise; the file has its section headers.
    let image = unsafe { std::slice::from_raw_parts(image, length) };
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ptx/out");
    let of_target = out.join(target);
    let found = cubins(&of_target)
        .into_iter()
        .find(|path| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(image)))?;
    // Modules without code of the target's own are assembled from sm_80's text.
    let common = out.join("sm_80").join(found.strip_prefix(&of_target).ok()?).with_extension("ptx");
    let text = found.with_extension("ptx");
    [text, common].iter().find_map(|path| std::fs::read_to_string(path).ok())
}

/// All cubins below `folder`.
fn cubins(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let below = |path: PathBuf| if path.is_dir() { cubins(&path) } else { vec![path] };
    let mut found: Vec<PathBuf> = paths.flat_map(below).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "cubin"));
    found
}
