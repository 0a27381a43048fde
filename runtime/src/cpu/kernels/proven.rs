//! The ledger of CPUs on which each class of kernels was tested lists every class.

use serde_json::Value;

use super::Q8Kernels;
use crate::cpu::Isa;

/// Fails unless the classes of `kind` in the ledger are `all`; says which classes this CPU can run.
fn check(kind: &str, all: Vec<String>, available: Vec<String>) {
    let ledger: Value = serde_json::from_str(include_str!("proven_on.json")).expect("JSON");
    let classes = ledger[kind].as_object().expect("an object");
    let mut listed: Vec<&str> = classes.keys().map(String::as_str).collect();
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    listed.sort_unstable();
    all.sort_unstable();
    assert_eq!(listed, all, "proven_on.json, {kind}");
    for (class, runs) in classes {
        let runs = runs.as_array().expect("an array");
        assert!(!runs.is_empty(), "{kind}, {class}: no CPU has run its tests");
        assert!(runs.iter().all(|run| run["cpu"].is_string() && run["date"].is_string()));
    }
    let absent = all.iter().filter(|class| !available.iter().any(|one| one == **class));
    println!("{kind}: tested here {available:?}, not on this CPU {:?}", absent.collect::<Vec<_>>());
}

#[test]
fn every_class_of_kernels_has_run_on_a_named_cpu() {
    let names = |isas: &mut dyn Iterator<Item = Isa>| isas.map(|isa| isa.to_string()).collect();
    let mut all = [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter();
    check("f32", names(&mut all), names(&mut Isa::available()));
    let names = |kernels: &mut dyn Iterator<Item = &'static Q8Kernels>| {
        kernels.map(|kernels| kernels.name.to_owned()).collect()
    };
    let all = names(&mut Q8Kernels::all());
    check("8-bit products", all, names(&mut Q8Kernels::available()));
}
