//! A crate is published with all that crates.io shows, or says that it is not.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::Violation;

/// The parts of `cargo metadata` that are checked.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Default, Deserialize)]
struct Package {
    name: String,
    /// None for a crate that can be published, no registry for another.
    publish: Option<Vec<String>>,
    description: Option<String>,
    documentation: Option<String>,
    readme: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    /// None for an ordinary dependency.
    kind: Option<String>,
    path: Option<String>,
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish.is_none()
    }
}

/// Violations in the workspace at `root`.
pub fn check(root: &Path) -> Vec<Violation> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["metadata", "--offline", "--locked", "--no-deps"]);
    let output = cargo.args(["--format-version", "1"]).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    incomplete(&metadata.packages)
}

fn incomplete(packages: &[Package]) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in packages.iter().filter(|package| package.is_published()) {
        let name = &package.name;
        let mut missing = |what: &str| {
            let message = format!("{name} has no {what}: add it, or set publish = false");
            found.push(Violation::new("Cargo.toml", 1, message));
        };
        let fields = [
            (package.description.is_some(), "description"),
            (package.documentation.is_some(), "documentation"),
            (package.readme.is_some(), "readme"),
            (!package.keywords.is_empty(), "keywords"),
            (!package.categories.is_empty(), "categories"),
        ];
        fields.iter().filter(|(is_there, _)| !is_there).for_each(|(_, field)| missing(field));
        // Those of tests are left out of a package where they have no version.
        let own = package.dependencies.iter().filter(|of| of.path.is_some());
        for dependency in own {
            let is_published = packages
                .iter()
                .any(|package| package.name == dependency.name && package.is_published());
            match (dependency.kind.as_deref(), &*dependency.req) {
                (Some("dev"), "*") => {}
                (_, "*") => missing(&format!("version of {}", dependency.name)),
                _ if !is_published => missing(&format!("published {}", dependency.name)),
                _ => {}
            }
        }
    }
    found
}

/// A build of trail-scheduler without its features.
#[test]
fn the_scheduler_alone_is_few_crates() {
    let arguments = ["tree", "--offline", "--locked", "-p", "trail-scheduler", "--prefix", "none"];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments);
    let output = cargo.args(["--no-default-features", "-e", "normal"]).output().expect("cargo");
    let tree = String::from_utf8(output.stdout).expect("UTF-8");
    let crates: std::collections::BTreeSet<&str> = tree.lines().collect();
    assert!((1..=3).contains(&crates.len()), "{tree}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_a_published_crate_lacks_is_found() {
    let dependency = |name: &str, req: &str, kind: Option<&str>| Dependency {
        name: name.into(),
        req: req.into(),
        kind: kind.map(String::from),
        path: Some("/".into()),
    };
    let full = |name: &str, dependencies: Vec<Dependency>| Package {
        name: name.into(),
        description: Some("x".into()),
        documentation: Some("x".into()),
        readme: Some("x".into()),
        keywords: vec!["x".into()],
        categories: vec!["x".into()],
        dependencies,
        ..Package::default()
    };
    let hidden = Package { publish: Some(Vec::new()), ..full("hidden", Vec::new()) };
    let fits = [dependency("b", "^0.1", None), dependency("hidden", "*", Some("dev"))];
    let packages = [full("a", fits.into()), full("b", Vec::new()), hidden];
    assert_eq!(incomplete(&packages), []);
    let lacks = [dependency("b", "*", None), dependency("hidden", "^0.1", Some("dev"))];
    let packages =
        [Package { readme: None, ..full("a", lacks.into()) }, packages.into_iter().nth(1).unwrap()];
    let messages: Vec<String> =
        incomplete(&packages).into_iter().map(|found| found.message).collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages[0].contains("readme") && messages[1].contains("version of b"), "{messages:?}");
}
