//! Dependencies come from crates.io, once each, under licences that `deny.toml` allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::Violation;

/// The workspaces' lock files.
const LOCKS: [&str; 4] =
    ["Cargo.lock", "tests/fuzz/Cargo.lock", "deploy/dynamo/Cargo.lock", "python/Cargo.lock"];

/// The parts of `deny.toml` that are compared.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
struct Skip {
    /// Name and beginning of the version.
    #[serde(rename = "crate")]
    spec: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    /// None for crates of the repository.
    source: Option<String>,
}

/// The parts of `cargo metadata` that are compared.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    source: Option<String>,
}

/// Violations of `deny.toml` in the repository at `root`.
pub fn check(root: &Path) -> Vec<Violation> {
    let read = |name: &str| fs::read_to_string(root.join(name)).expect(name);
    let rules: Rules = toml::from_str(&read("deny.toml")).expect("deny.toml");
    let mut found = Vec::new();
    for name in LOCKS {
        let lock: Lock = toml::from_str(&read(name)).expect(name);
        found.extend(sources(name, &lock.package, &rules.sources));
        // The runtime of Dynamo, a separate workspace, has its own.
        if name == LOCKS[0] {
            found.extend(duplicates(name, &lock.package, &rules.bans));
        }
    }
    found.extend(licences(&metadata(root).packages, &rules.licenses));
    found
}

/// The packages of a build for this machine: those of others need not be on the disk.
fn metadata(root: &Path) -> Metadata {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["metadata", "--offline", "--locked", "--format-version", "1"]);
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = cargo.args(["--filter-platform", &target]).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo's JSON")
}

fn sources(lock: &str, packages: &[Locked], rules: &Sources) -> Vec<Violation> {
    let is_allowed = |source: &str| {
        let registry = source.strip_prefix("registry+");
        registry.is_some_and(|registry| rules.allow_registry.iter().any(|url| url == registry))
    };
    let mut found = Vec::new();
    for Locked { name, version, source } in packages {
        if let Some(source) = source.as_ref().filter(|source| !is_allowed(source)) {
            let message = format!("{name} {version} is from {source}: crates.io alone is allowed");
            found.push(Violation::new(lock, 1, message));
        }
    }
    found
}

fn duplicates(lock: &str, packages: &[Locked], rules: &Bans) -> Vec<Violation> {
    let mut skips: Vec<(&Skip, bool)> = rules.skip.iter().map(|skip| (skip, false)).collect();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let is_skipped = |skip: &Skip| {
            let (name, version) = skip.spec.split_once('@').expect("NAME@VERSION");
            package.name == name
                && format!("{}.", package.version).starts_with(&format!("{version}."))
        };
        match skips.iter_mut().find(|(skip, _)| is_skipped(skip)) {
            Some((_, is_used)) => *is_used = true,
            None => versions.entry(&package.name).or_default().push(&package.version),
        }
    }
    let mut found = Vec::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let versions = versions.join(" and ");
        let message =
            format!("{name} is there as {versions}: use one, or give a reason in deny.toml");
        found.push(Violation::new(lock, 1, message));
    }
    for (skip, _) in skips.iter().filter(|(_, is_used)| !is_used) {
        found.push(Violation::new("deny.toml", 1, format!("{} is gone: remove it", skip.spec)));
    }
    found
}

fn licences(packages: &[Package], rules: &Licenses) -> Vec<Violation> {
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    for package in packages.iter().filter(|package| package.source.is_some()) {
        let expression = package.license.as_deref().unwrap_or_default();
        if !allows(expression, &rules.allow, &mut used) {
            let message = format!("{}: {expression:?} is not allowed by deny.toml", package.name);
            found.push(Violation::new("Cargo.lock", 1, message));
        }
    }
    for allowed in rules.allow.iter().filter(|allowed| !used.contains(*allowed)) {
        found.push(Violation::new(
            "deny.toml",
            1,
            format!("no crate is under {allowed}: remove it"),
        ));
    }
    found
}

/// True if one alternative of an SPDX `expression` has allowed licences alone; they become `used`.
fn allows(expression: &str, allowed: &[String], used: &mut BTreeSet<String>) -> bool {
    // `/` is the older spelling of OR. Exceptions, by WITH, only add permissions.
    let expression = expression.replace(" / ", " OR ").replace('/', " OR ");
    if let Some((inner, rest)) =
        expression.strip_prefix('(').and_then(|text| text.split_once(") AND "))
    {
        return allows(inner, allowed, used) && allows(rest, allowed, used);
    }
    let names = |alternative: &str| -> Vec<String> {
        let names = alternative.split(" AND ").filter_map(|name| name.split_whitespace().next());
        names.map(str::to_owned).collect()
    };
    let mut alternatives = expression.split(" OR ").map(names);
    let found = alternatives
        .find(|names| !names.is_empty() && names.iter().all(|name| allowed.contains(name)));
    used.extend(found.clone().unwrap_or_default());
    found.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_needs_one_alternative_that_is_allowed() {
        let allowed = ["MIT", "ISC", "Unicode-3.0"].map(String::from);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("", false),
            ("GPL-3.0 OR MIT", true),
            ("Apache-2.0/MIT", true),
            ("Apache-2.0 / MIT", true),
            ("MIT AND ISC", true),
            ("MIT AND GPL-3.0", false),
            ("GPL-3.0 AND MIT OR ISC", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("MIT WITH Some-exception", true),
        ] {
            assert_eq!(
                allows(expression, &allowed, &mut BTreeSet::new()),
                expected,
                "{expression}"
            );
        }
    }

    fn locked(name: &str, version: &str, source: &str) -> Locked {
        Locked { name: name.into(), version: version.into(), source: Some(source.into()) }
    }

    #[test]
    fn other_sources_second_versions_and_stale_reasons_are_found() {
        let registry = "registry+https://crates";
        let packages = [
            locked("a", "1.0.0", registry),
            locked("a", "2.0.0", registry),
            locked("b", "0.1.5", registry),
            locked("b", "0.2.0", "git+https://elsewhere"),
        ];
        let rules = Sources { allow_registry: vec!["https://crates".into()] };
        assert_eq!(sources("l", &packages, &rules).len(), 1);
        let bans = |specs: &[&str]| Bans {
            skip: specs.iter().map(|spec| Skip { spec: (*spec).into() }).collect(),
        };
        assert_eq!(duplicates("l", &packages, &bans(&[])).len(), 2);
        assert_eq!(duplicates("l", &packages, &bans(&["a@1", "b@0.1"])), []);
        let stale = duplicates("l", &packages, &bans(&["a@1", "b@0.1", "c@1"]));
        assert!(stale.len() == 1 && stale[0].message.starts_with("c@1 is gone"));
    }

    #[test]
    fn a_licence_that_is_not_allowed_and_one_without_a_crate_are_found() {
        let package = |license: &str| Package {
            name: "a".into(),
            license: Some(license.into()),
            source: Some("registry".into()),
        };
        let rules = Licenses { allow: vec!["MIT".into(), "ISC".into()] };
        let messages: Vec<String> = licences(&[package("MIT"), package("GPL-3.0")], &rules)
            .into_iter()
            .map(|found| found.message)
            .collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].contains("GPL-3.0") && messages[1].contains("ISC"), "{messages:?}");
    }
}
