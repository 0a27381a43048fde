//! The product runs on the system's allocator: a counting one is for tests.

use crate::Violation;
use crate::source;
use crate::tree;

/// The crate that replaces the global allocator of whatever links it.
const COUNTING: &str = "trail-counting-allocator";

/// Global allocators outside tests/, and dependencies on [`COUNTING`] that are not for tests.
pub fn check(path: &str, text: &str) -> Vec<Violation> {
    match tree::extension(path) {
        "rs" if !path.starts_with("tests/") => global_allocators(path, text),
        "toml" => dependencies(path, text),
        _ => Vec::new(),
    }
}

fn global_allocators(path: &str, text: &str) -> Vec<Violation> {
    let lines = source::lines(path, text).into_iter().enumerate();
    let found = lines.filter(|(_, line)| line.code.contains("global_allocator"));
    let message = "`#[global_allocator]` outside tests/: depend on the counting one in tests";
    found.map(|(at, _)| Violation::new(path, at + 1, message)).collect()
}

fn dependencies(path: &str, text: &str) -> Vec<Violation> {
    // Tables that may name it: tests, its own manifest, and its place in the workspace.
    let may_name = |table: &str| {
        table.contains("dev-dependencies") || ["package", "workspace.dependencies"].contains(&table)
    };
    let mut table = "";
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = code.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = name;
        }
        if code.contains(COUNTING) && !may_name(table) {
            let message = format!("`{COUNTING}` in [{table}]: only in [dev-dependencies]");
            found.push(Violation::new(path, at + 1, message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_global_allocator_of_the_product_is_found() {
        let text = "// #[global_allocator]\n#[global_allocator]\nstatic A: System = System;\n";
        assert_eq!(check("runtime/src/a.rs", text)[0].line, 2);
        assert_eq!(check("tests/alloc/src/lib.rs", text), []);
    }

    #[test]
    fn a_dependency_that_is_not_for_tests_is_found() {
        let lines = |text| -> Vec<usize> {
            check("a/Cargo.toml", text).into_iter().map(|found| found.line).collect()
        };
        let direct = "[dependencies]\n# trail-counting-allocator\nclap.workspace = true\n\
                      trail-counting-allocator.workspace = true\n";
        assert_eq!(lines(direct), [4]);
        let renamed = "[target.'cfg(unix)'.dependencies]\n\
                       a = { package = \"trail-counting-allocator\" }\n";
        assert_eq!(lines(renamed), [2]);
        assert_eq!(lines("[dependencies.trail-counting-allocator]\nworkspace = true\n"), [1]);
        let fine = "[workspace.dependencies]\ntrail-counting-allocator = { path = \"b\" }\n\
                    [package]\nname = \"trail-counting-allocator\"\n\
                    [dev-dependencies]\ntrail-counting-allocator.workspace = true\n";
        assert_eq!(lines(fine), [0; 0]);
    }
}
