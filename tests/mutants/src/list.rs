//! The lists of planted bugs, text files beside `Cargo.toml`. One entry:
//!
//! ```text
//! @@ 101 core
//! the description, one line
//! scheduler/src/policies/trail.rs
//! -the text to replace, once in the file
//! +its replacement; MUTANT is true while the bug is planted
//! (more such pairs)
//! test trail-scheduler lib filter
//! ```
//!
//! `core` is optional. The target of a test is `lib` or the name of an integration test. Entries of
//! `.ptx` files are edits of the text wherever it occurs, as a kernel has instances, without
//! `MUTANT`.

use std::path::Path;

/// A test binary, and the tests of it that run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    /// Package name.
    pub(crate) package: String,
    /// `lib`, or the name of an integration test.
    pub(crate) target: String,
    /// Parts of test names; all tests where empty.
    pub(crate) filters: Vec<String>,
}

/// One planted bug.
#[derive(Debug, Default)]
pub(crate) struct Mutant {
    /// Number, unique over all lists: the value of `TRAIL_MUTANT`.
    pub(crate) number: u32,
    /// One line.
    pub(crate) description: String,
    /// Path from the root of the repository.
    pub(crate) file: String,
    /// Texts that it replaces, and their replacements, in which `MUTANT` is the switch.
    pub(crate) edits: Vec<(String, String)>,
    /// The test that must fail.
    pub(crate) test: Test,
    /// Part of the short run.
    pub(crate) core: bool,
}

impl Mutant {
    /// True for a bug in the text of a compiled kernel.
    pub(crate) fn is_ptx(&self) -> bool {
        self.file.ends_with(".ptx")
    }
}

/// Reads all lists of `folder`, by number.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<Mutant>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut mutants = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == "txt") {
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|e| format!("{}: {e}", path.display()))?;
            mutants.extend(parse(&text).map_err(|why| format!("{}: {why}", path.display()))?);
        }
    }
    mutants.sort_by_key(|mutant| mutant.number);
    match mutants.windows(2).find(|pair| pair[0].number == pair[1].number) {
        Some(pair) => Err(format!("number {} is used twice", pair[0].number)),
        None => Ok(mutants),
    }
}

/// Parses one list. An error names the line.
fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let fail = |why: &str| format!("line {}: {why}", at + 1);
        if let Some(head) = line.strip_prefix("@@ ") {
            let mut words = head.split(' ');
            let number = words.next().and_then(|word| word.parse().ok());
            let number = number.filter(|&number| number != 0).ok_or_else(|| fail("no number"))?;
            let core = words.next() == Some("core");
            mutants.push(Mutant { number, core, ..Mutant::default() });
        } else if let Some(mutant) = mutants.last_mut() {
            field(mutant, line).map_err(fail)?;
        } else if !line.is_empty() && !line.starts_with('#') {
            return Err(fail("text before the first entry"));
        }
    }
    for mutant in &mutants {
        let is_whole = !mutant.edits.is_empty() && !mutant.test.target.is_empty();
        let has_switch = mutant.edits.iter().any(|(_, with)| with.contains("MUTANT"));
        let switches = mutant.is_ptx() || has_switch;
        if !is_whole || !switches {
            return Err(format!("{}: a snippet, its MUTANT or a test is missing", mutant.number));
        }
    }
    Ok(mutants)
}

/// Appends a line to lines.
fn append(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

/// Adds one line to its entry.
fn field(mutant: &mut Mutant, line: &str) -> Result<(), &'static str> {
    let begins = mutant.edits.last().is_none_or(|(_, with)| !with.is_empty());
    if let Some(line) = line.strip_prefix('-') {
        if begins {
            mutant.edits.push(Default::default());
        }
        append(&mut mutant.edits.last_mut().ok_or("no edit")?.0, line);
    } else if let Some(line) = line.strip_prefix('+') {
        append(&mut mutant.edits.last_mut().ok_or("a replacement of nothing")?.1, line);
    } else if let Some(test) = line.strip_prefix("test ") {
        let mut words = test.split(' ').map(str::to_owned);
        let (Some(package), Some(target)) = (words.next(), words.next()) else {
            return Err("a test is a package, a target and filters");
        };
        mutant.test = Test { package, target, filters: words.collect() };
    } else if line.is_empty() || line.starts_with('#') {
        return Ok(());
    } else if mutant.description.is_empty() {
        line.clone_into(&mut mutant.description);
    } else if mutant.file.is_empty() {
        line.clone_into(&mut mutant.file);
    } else {
        return Err("neither -, + nor test");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{parse, read_all};

    #[test]
    fn an_entry_is_read() {
        let text = "# A list\n@@ 7 core\nabout\na.rs\n-one\n-two\n+MUTANT\ntest p lib f g\n";
        let mutants = parse(text).unwrap();
        let mutant = &mutants[0];
        assert_eq!((mutant.number, mutant.core, mutant.edits[0].0.as_str()), (7, true, "one\ntwo"));
        assert_eq!(mutant.test.filters, ["f", "g"]);
        assert_eq!(parse("@@ x\n").unwrap_err(), "line 1: no number");
        assert_eq!(parse("@@ 8\na\nb\nc\n").unwrap_err(), "line 4: neither -, + nor test");
    }

    #[test]
    fn every_snippet_is_once_in_its_file() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = folder.ancestors().nth(2).unwrap();
        let mutants = read_all(folder).unwrap();
        let texts =
            |file: &str| std::fs::read_to_string(root.join(file)).map_err(|e| e.to_string());
        let damaged = crate::tree::damaged(&mutants, texts);
        assert!(damaged.is_empty(), "{}", damaged.join("\n"));
    }
}
