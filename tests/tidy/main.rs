//! Rules that a compiler does not check, over every source and document of the repository: words,
//! line width, lengths of functions, files and documents, `unsafe`, allocators, links, direction of
//! imports, root folders, figures, dependencies.
//!
//! Each rule is a function of one file's path and text, and has a test with a planted violation.

// Test binary: `pub` only marks a module's interface to its siblings.
#![allow(unreachable_pub)]

use std::path::Path;

mod allocator;
mod dependencies;
mod documents;
mod figures;
mod functions;
mod imports;
mod lengths;
mod links;
mod published;
mod root;
mod source;
mod tree;
mod unsafe_fence;
mod width;
mod words;

use tree::File;

/// One place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path from the repository's root.
    pub path: String,
    /// Line, counted from 1.
    pub line: usize,
    /// The rule and what to write instead.
    pub message: String,
}

impl Violation {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: path.to_owned(), line, message: message.into() }
    }
}

/// Files of the repository; the ratchets need all at once.
fn repository() -> Vec<File> {
    let files = tree::files(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(files.len() > 300, "only {} files found: the walk is broken", files.len());
    files
}

/// Applies `rule` to every file, and fails with the list of violations.
fn enforce(rule: impl Fn(&str, &str) -> Vec<Violation>) {
    report(repository().iter().flat_map(|file| rule(&file.path, &file.text)).collect());
}

fn report(violations: Vec<Violation>) {
    let lines: Vec<String> = violations
        .iter()
        .map(|found| format!("{}:{}: {}", found.path, found.line, found.message))
        .collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn words_are_those_of_the_field() {
    enforce(words::check);
}

#[test]
fn lines_fit_100_columns() {
    enforce(width::check);
}

#[test]
fn functions_fit_a_screen() {
    let files = repository();
    report(lengths::ratchet(&functions::over_long(&files), functions::LIMIT, functions::RATCHET));
}

#[test]
fn files_fit_400_lines() {
    let files = repository();
    report(lengths::ratchet(&lengths::over_long(&files), lengths::LIMIT, lengths::RATCHET));
}

#[test]
fn unsafe_code_is_in_listed_files() {
    report(unsafe_fence::check(&repository()));
}

#[test]
fn the_product_has_the_systems_allocator() {
    enforce(allocator::check);
}

#[test]
fn links_lead_somewhere() {
    report(links::check(&repository()));
}

#[test]
fn backends_do_not_import_the_engine() {
    enforce(imports::check);
}

#[test]
fn figures_are_those_of_their_records() {
    report(figures::check(&repository()));
}

#[test]
fn documents_stay_short() {
    report(documents::check(&repository()));
}

#[test]
fn dependencies_are_those_of_deny_toml() {
    report(dependencies::check(Path::new(env!("CARGO_MANIFEST_DIR"))));
}

#[test]
fn published_crates_have_what_a_registry_shows() {
    report(published::check(Path::new(env!("CARGO_MANIFEST_DIR"))));
}

#[test]
fn the_root_has_few_folders() {
    report(root::check(Path::new(env!("CARGO_MANIFEST_DIR"))));
}
