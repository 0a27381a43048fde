//! `unsafe` code stays in listed files.

use crate::Violation;
use crate::source;
use crate::tree::{self, File};

/// Prefixes that need no list: tests, and crates for tests and measurements.
const FREE: [&str; 2] = ["benches/", "tests/"];

/// Length of [`LISTED`]; it may only shrink, but with a paragraph in docs/decisions/.
const MAX_FILES: usize = 65;

/// Files with `unsafe` that a user's process runs.
const LISTED: &[&str] = &[
    "capi/src/engine.rs",
    "capi/src/pointers.rs",
    "capi/src/probe.rs",
    "capi/src/request.rs",
    "capi/src/scheduler.rs",
    "capi/src/status.rs",
    "capi/src/tracker.rs",
    "platform/src/heap.rs",
    "platform/src/simd/avx2.rs",
    "platform/src/simd/avx512.rs",
    "platform/src/simd/mod.rs",
    "platform/src/simd/neon.rs",
    "platform/src/simd/neon_dot.rs",
    "platform/src/simd/portable.rs",
    "probe/src/kernel/avx512.rs",
    "probe/src/kernel/eight_lanes.rs",
    "probe/src/kernel/format.rs",
    "probe/src/kernel/masses.rs",
    "probe/src/kernel/mod.rs",
    "probe/src/kernel/portable.rs",
    "probe/src/kernel/tile.rs",
    "probe/src/line.rs",
    "ptx/src/bin/compile/nvrtc.rs",
    "ptx/src/lib.rs",
    "runtime/cpu-kernels/src/attention.rs",
    "runtime/cpu-kernels/src/byte_tile.rs",
    "runtime/cpu-kernels/src/expand.rs",
    "runtime/cpu-kernels/src/glu.rs",
    "runtime/cpu-kernels/src/norm.rs",
    "runtime/cpu-kernels/src/packing.rs",
    "runtime/cpu-kernels/src/pairs.rs",
    "runtime/cpu-kernels/src/pairs_table.rs",
    "runtime/cpu-kernels/src/product.rs",
    "runtime/cpu-kernels/src/q8_product.rs",
    "runtime/cpu-kernels/src/q8_rows.rs",
    "runtime/cpu-kernels/src/q8_table.rs",
    "runtime/cpu-kernels/src/quantized.rs",
    "runtime/cpu-kernels/src/shared.rs",
    "runtime/cpu-kernels/src/stored.rs",
    "runtime/cpu-kernels/src/table.rs",
    "runtime/cpu-kernels/src/tile.rs",
    "runtime/cpu-kernels/src/unpack.rs",
    "runtime/src/cpu/adapted.rs",
    "runtime/src/cpu/attend.rs",
    "runtime/src/cpu/heads.rs",
    "runtime/src/cpu/linear.rs",
    "runtime/src/cpu/mixture.rs",
    "runtime/src/cpu/narrow.rs",
    "runtime/src/cpu/pool.rs",
    "runtime/src/cpu/regions.rs",
    "runtime/src/cuda/context.rs",
    "runtime/src/cuda/device.rs",
    "runtime/src/cuda/graphs.rs",
    "runtime/src/cuda/inventory.rs",
    "runtime/src/cuda/launch/hopper.rs",
    "runtime/src/cuda/memory.rs",
    "runtime/src/cuda/plain.rs",
    "runtime/src/cuda/queue.rs",
    "runtime/src/cuda/step/launches.rs",
    "runtime/src/cuda/swap/mod.rs",
    "runtime/src/cuda/tap/ring.rs",
    "runtime/src/cuda/weights/upload.rs",
    "runtime/src/model/mapped_file.rs",
    "runtime/src/mpsc_ring.rs",
    "runtime/src/sampling/widest.rs",
];

/// Differences between [`LISTED`] and the files.
pub fn check(files: &[File]) -> Vec<Violation> {
    assert!(LISTED.len() <= MAX_FILES, "{} files are listed, at most {MAX_FILES}", LISTED.len());
    compare(files, LISTED)
}

fn compare(files: &[File], listed: &[&str]) -> Vec<Violation> {
    let product = files.iter().filter(|file| !is_free(&file.path));
    let mut found = Vec::new();
    for file in product {
        let line = first_unsafe(&file.path, &file.text);
        let is_listed = listed.contains(&file.path.as_str());
        let message = match line {
            Some(_) if file.path.starts_with("src/") => {
                "the program has no `unsafe`: move it below"
            }
            Some(_) if !is_listed => {
                "`unsafe` in an unlisted file: use a safe interface, or list it"
            }
            None if is_listed => "no `unsafe` any more: unlist it",
            _ => continue,
        };
        found.push(Violation::new(&file.path, line.unwrap_or(1), message));
    }
    let missing = listed.iter().filter(|path| files.iter().all(|file| file.path != **path));
    found.extend(
        missing.map(|path| Violation::new(path, 1, "listed, but does not exist: unlist it")),
    );
    found
}

fn is_free(path: &str) -> bool {
    FREE.iter().any(|prefix| path.starts_with(prefix))
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
}

/// Line of the first `unsafe` in Rust code.
fn first_unsafe(path: &str, text: &str) -> Option<usize> {
    if tree::extension(path) != "rs" {
        return None;
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let lines = source::lines(path, text);
    let mut names = lines.iter().map(|line| line.code.split(|c| !is_name(c)));
    names.position(|mut names| names.any(|name| name == "unsafe")).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::{File, compare};

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_list_is_exact() {
        let files = [
            file("probe/src/a.rs", "fn a() {}\nunsafe fn b() {}"),
            file("probe/src/b.rs", "unsafe impl Send for A {}"),
            file("probe/src/c.rs", "fn a() {}"),
            file("src/main.rs", "fn main() { unsafe { b() } }"),
        ];
        let found =
            compare(&files, &["probe/src/a.rs", "probe/src/c.rs", "gone.rs", "src/main.rs"]);
        let found: Vec<(&str, usize)> =
            found.iter().map(|found| (found.path.as_str(), found.line)).collect();
        assert_eq!(
            found,
            [("probe/src/b.rs", 1), ("probe/src/c.rs", 1), ("src/main.rs", 1), ("gone.rs", 1)]
        );
    }

    #[test]
    fn words_are_not_code_and_tests_are_free() {
        let files = [
            file("probe/src/a.rs", "// unsafe\n#![deny(unsafe_code)]\nlet a = \"unsafe\";"),
            file("runtime/tests/b.rs", "unsafe { b() }"),
            file("probe/src/head/tests.rs", "unsafe { b() }"),
        ];
        assert_eq!(compare(&files, &[]), []);
    }
}
