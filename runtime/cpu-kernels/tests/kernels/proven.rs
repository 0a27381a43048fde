//! The ledger of CPUs on which each class of kernels was tested lists every class.

use std::collections::BTreeSet;

use serde_json::Value;

use trail_cpu_kernels::{PairKernels, Q8Kernels};
use trail_platform::Isa;

/// Fails unless the runs of the ledger have the classes `all` of `kind`; says which this CPU has.
fn check(kind: &str, all: BTreeSet<String>, available: BTreeSet<String>) {
    let ledger: Value = serde_json::from_str(include_str!("../../proven_on.json")).expect("JSON");
    let mut proven = BTreeSet::new();
    for run in ledger["runs"].as_array().expect("a list") {
        for member in ["cpu", "architecture", "features", "commit", "date"] {
            assert!(run[member].is_string(), "{member} of {run}");
        }
        if run["architecture"] != std::env::consts::ARCH {
            continue;
        }
        // A run from before the kind was there has none.
        let classes = run[kind].as_array().into_iter().flatten();
        proven.extend(classes.map(|class| class.as_str().expect("a name").to_owned()));
    }
    assert_eq!(proven, all, "proven_on.json, {kind}");
    let absent: Vec<_> = all.difference(&available).collect();
    println!("{kind}: tested here {available:?}, not on this CPU {absent:?}");
}

#[test]
fn every_class_of_kernels_has_run_on_a_named_cpu() {
    let own =
        if cfg!(target_arch = "aarch64") { &[Isa::Neon][..] } else { &[Isa::Avx2, Isa::Avx512] };
    let all = [Isa::Portable].iter().chain(own).map(|isa| isa.to_string()).collect();
    check("f32", all, Isa::available().map(|isa| isa.to_string()).collect());
    let name = |kernels: &Q8Kernels| kernels.name.to_owned();
    let available = Q8Kernels::available().map(name).collect();
    check("8-bit products", Q8Kernels::all().map(name).collect(), available);
    let name = |kernels: &PairKernels| kernels.name.to_owned();
    let available = PairKernels::available().map(name).collect();
    check("bf16 products", PairKernels::all().map(name).collect(), available);
}
