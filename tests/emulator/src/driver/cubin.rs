//! Machine code of this project's kernels: the emulator runs the text that it was assembled from,
//! which lies beside it in `ptx/out/`.

use std::path::{Path, PathBuf};

/// Bytes of an ELF header.
const HEADER: usize = 64;

/// The text of the cubin `image` for `target`, if it is one of this project's. `length` are its
/// bytes where the caller knows them.
///
/// # Safety
/// `image` points to an ELF file, of `length` bytes where that is given.
pub(super) unsafe fn text(image: *const u8, length: Option<usize>, target: &str) -> Option<String> {
    if length.is_some_and(|length| length < HEADER) {
        return None;
    }
    // SAFETY: the file has a header.
    let header = unsafe { std::slice::from_raw_parts(image, HEADER) };
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ptx/out");
    let of_target = out.join(target);
    let found = cubins(&of_target).into_iter().find(|path| {
        let Ok(known) = std::fs::read(path) else { return false };
        // A header gives the place of the last part of a file, so files with one header have one
        // length.
        if !known.starts_with(header) || length.is_some_and(|length| length < known.len()) {
            return false;
        }
        // SAFETY: the file is as long as `known`: by its length, or by its header.
        known == unsafe { std::slice::from_raw_parts(image, known.len()) }
    })?;
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
