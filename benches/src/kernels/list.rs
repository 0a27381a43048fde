//! The list of kernels with their resources and the devices that proved them.

use serde_json::{Map, Value, json};
use trail_ptx::{Entry, MODULES, Module, Resources, Target};

/// All kernels: a row for each kernel and target.
pub fn all() -> Result<Value, String> {
    let proofs: Map<String, Value> =
        serde_json::from_str(trail_ptx::PROOFS).map_err(|error| format!("proofs.json: {error}"))?;
    let manifest: Value = serde_json::from_str(trail_ptx::MANIFEST)
        .map_err(|error| format!("manifest.json: {error}"))?;
    let rows = MODULES.iter().flat_map(|module| {
        let (proofs, modules) = (&proofs, &manifest["modules"]);
        let row = move |entry: &Entry, on: &Resources| {
            let sass = &modules[module.name]["entries"][entry.name]["sass"][on.target.name()];
            row(module, entry, on, sass, proofs)
        };
        module.entries.iter().flat_map(move |entry| {
            entry.resources.iter().map(move |resources| row(entry, resources))
        })
    });
    Ok(json!({ "kernels": rows.collect::<Vec<_>>() }))
}

fn row(
    module: &Module,
    entry: &Entry,
    on: &Resources,
    sass: &Value,
    proofs: &Map<String, Value>,
) -> Value {
    json!({
        "name": entry.name,
        "arch": on.target.name(),
        "source": module.source,
        "registers": on.registers,
        "shared_bytes": on.shared_bytes,
        "spills": on.spill_store_bytes + on.spill_load_bytes,
        "sass": sass,
        "proven_on": proven_on(module, entry, on, proofs),
    })
}

/// Devices on which exactly this code passed its tests: the emulator and the emulator of Hopper run
/// the PTX of their targets, a GPU its own cubin. Blackwell's is made of sm_80's text, which the
/// emulator runs.
fn proven_on(
    module: &Module,
    entry: &Entry,
    on: &Resources,
    proofs: &Map<String, Value>,
) -> Vec<String> {
    let holds = |target: Target, proof: &Value| {
        let hash = module.image(target).map(|image| format!("{:016x}", image.code_hash()));
        let found = proof["kernels"][entry.name].as_str();
        proof["arch"] == target.name() && found.is_some() && found == hash.as_deref()
    };
    let proven = proofs.iter().filter(|(device, proof)| {
        let by_text = on.target.is_blackwell() && *device == "emulator";
        holds(on.target, proof) || by_text && holds(Target::Sm80, proof)
    });
    proven.map(|(device, _)| device.clone()).collect()
}
