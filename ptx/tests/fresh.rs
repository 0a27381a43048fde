//! Checked-in files agree: sources, headers, code, manifest, tables, parameter structs. Needs no
//! CUDA.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use trail_ptx::{MODULES, Module, Target, hash, header, params};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file under kernels/, as repository paths.
fn kernel_files() -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec!["kernels".to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().unwrap().is_dir() {
                pending.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_source_is_compiled_and_unchanged_since() {
    let sources: BTreeSet<String> =
        kernel_files().into_iter().filter(|path| path.ends_with(".cu")).collect();
    let compiled: BTreeSet<String> =
        MODULES.iter().map(|module| module.source.to_owned()).collect();
    assert_eq!(sources, compiled, "run `cargo run -p trail-ptx --bin compile`");
    for module in MODULES {
        let name = module.source.strip_prefix("kernels/").unwrap();
        let now = hash::of_source(&root().join("kernels"), name).unwrap();
        assert_eq!(
            now, module.source_hash,
            "{} changed since it was compiled: run `cargo run -p trail-ptx --bin compile`",
            module.source
        );
    }
}

#[test]
fn the_manifest_and_the_table_say_the_same() {
    let manifest: Value = serde_json::from_str(&read("ptx/manifest.json")).unwrap();
    let modules = manifest["modules"].as_object().unwrap();
    assert_eq!(modules.len(), MODULES.len());
    for module in MODULES {
        let listed = &modules[module.name];
        assert_eq!(listed["source"], module.source);
        assert_eq!(listed["source_hash"], format!("{:016x}", module.source_hash));
        assert_eq!(listed["entries"].as_object().unwrap().len(), module.entries.len());
        for entry in module.entries {
            let listed = &listed["entries"][entry.name];
            assert_eq!(listed["params"], entry.params);
            assert_eq!(listed["param_bytes"], entry.param_bytes);
            for resources in entry.resources {
                let listed = &listed["resources"][resources.target.name()];
                assert_eq!(listed["registers"], resources.registers, "{}", entry.name);
                assert_eq!(listed["shared_bytes"], resources.shared_bytes);
                assert_eq!(listed["stack_bytes"], resources.stack_bytes);
                assert_eq!(listed["spill_store_bytes"], resources.spill_store_bytes);
                assert_eq!(listed["spill_load_bytes"], resources.spill_load_bytes);
                assert_eq!(listed["barriers"], resources.barriers);
            }
        }
    }
}

#[test]
fn no_kernel_spills_more_than_its_target_allows() {
    for entry in MODULES.iter().flat_map(|module| module.entries) {
        assert!(!entry.resources.is_empty(), "{} has no resources", entry.name);
        for found in entry.resources {
            let spilled = [found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes];
            let max = found.target.max_spilled_bytes(entry.name);
            assert!(spilled.iter().all(|bytes| *bytes <= max), "{}: {found:?}", entry.name);
            assert!(found.registers > 0 && found.registers <= 255);
        }
    }
}

#[test]
fn every_header_is_complete_and_kept() {
    for module in MODULES {
        let text = read(module.source);
        let contract =
            header::parse(&text).unwrap_or_else(|why| panic!("{}: {why}", module.source));
        let (path, function) = contract.reference.split_once("::").unwrap();
        let reference = read(path);
        assert!(
            reference.contains(&format!("fn {function}")),
            "{}: no reference {}",
            module.source,
            contract.reference
        );
        check_targets(module, &contract.arch);
        assert!(module.entries.iter().all(|entry| entry.params == contract.params));
        assert!(!module.entries.is_empty(), "{}: no extern \"C\" entry", module.source);
    }
}

#[test]
fn every_tensor_of_a_header_is_a_parameter() {
    let params = read("kernels/common/params.h");
    for module in MODULES {
        let contract = header::parse(&read(module.source)).unwrap();
        let known = field_names(&params, &contract.params);
        for tensor in contract.inputs.iter().chain(&contract.outputs) {
            let (name, _) = tensor.split_once(" [").unwrap();
            let unknown = name.split('.').find(|field| !known.contains(*field));
            assert_eq!(unknown, None, "{}: `{name}` is not in {}", module.source, contract.params);
        }
    }
}

/// Names of the fields of the struct `name` of params.h, and of those of the structs in it.
fn field_names(params: &str, name: &str) -> BTreeSet<String> {
    let (before, _) = params.split_once(&format!("}} {name};")).unwrap();
    let (_, body) = before.rsplit_once("typedef struct {").unwrap();
    let mut names = BTreeSet::new();
    for line in body.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let Some((kind, field)) = line.trim_end_matches(';').rsplit_once(' ') else { continue };
        let field = field.trim_start_matches('*');
        names.insert(field.split('[').next().unwrap().to_owned());
        if kind != "bf16" && params.contains(&format!("}} {kind};")) {
            names.extend(field_names(params, kind));
        }
    }
    names
}

/// The module has a text for each target its header names, and cubins for those; sm_80's text is a
/// cubin for Hopper too, and for Blackwell but for the teaching kernels.
fn check_targets(module: &Module, arch: &[Target]) {
    for target in Target::ALL {
        let named = arch.contains(&target);
        let is_left_out = target.is_blackwell() && module.name.starts_with("ladder/");
        let expected = named || arch.contains(&Target::Sm80) && !is_left_out;
        let image = module.image(target);
        assert_eq!(image.is_some(), expected, "{} {}", module.source, target.name());
        let Some(image) = image else { continue };
        assert_eq!(&image.cubin[..4], b"\x7fELF");
        assert_eq!(image.ptx.is_some(), named && target == Target::Sm80, "{}", module.source);
        if named {
            let ptx = read(&format!("ptx/out/{}/{}.ptx", target.name(), module.name));
            assert!(ptx.contains(&format!(".target {}", target.name())));
        }
    }
}

#[test]
fn assembly_lives_in_two_files() {
    let holds_assembly = |path: &String| {
        let text = read(path);
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        code.into_iter().any(|line| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| matches!(word, "asm" | "__asm__" | "__asm"))
        })
    };
    let found: Vec<_> = kernel_files().into_iter().filter(holds_assembly).collect();
    assert_eq!(found, ["kernels/common/ptx.cuh", "kernels/hopper/hopper.cuh"]);
}

#[test]
fn each_argument_is_the_rust_struct_of_its_header() {
    for module in MODULES {
        for target in header::parse(&read(module.source)).unwrap().arch {
            let ptx = read(&format!("ptx/out/{}/{}.ptx", target.name(), module.name));
            assert_eq!(ptx.matches(".entry ").count(), module.entries.len(), "{}", module.source);
            for piece in ptx.split(".entry ").skip(1) {
                let (name, rest) = piece.split_once('(').unwrap();
                let list = rest.split_once(')').unwrap().0;
                check_argument(module, name.trim(), list);
            }
        }
    }
}

fn check_argument(module: &Module, name: &str, list: &str) {
    assert_eq!(list.matches(".param").count(), 1, "{name} takes one argument");
    let entry = module.entries.iter().find(|entry| entry.name == name).unwrap();
    let (_, size, align) =
        params::STRUCTS.iter().find(|(params, ..)| *params == entry.params).unwrap_or_else(|| {
            panic!("{}: {} is not in params.h", module.source, entry.params);
        });
    let words: Vec<&str> = list.split_whitespace().collect();
    let after = |word: &str| words.iter().skip_while(|found| **found != word).nth(1).copied();
    assert_eq!(after(".align"), Some(align.to_string().as_str()), "{name}");
    assert!(list.contains(&format!("[{size}]")), "{name}: {list} against {size} bytes");
    assert_eq!((entry.param_bytes as usize, entry.param_align as usize), (*size, *align));
}

#[test]
fn the_parameter_structs_are_those_of_the_header() {
    assert_eq!(
        hash::of_text(&read("kernels/common/params.h")),
        params::HEADER_HASH,
        "run `cargo run -p trail-ptx --features params --bin params`"
    );
}

#[test]
fn a_header_that_lacks_something_is_refused() {
    let whole = "// op      adds\n// params  P\n// in      x [n] bf16, 2-byte aligned\n//         more of it\n\
                 // out     y [n] f32, 4-byte aligned\n// arch    sm_80\n// launch  grid [n]\n\
                 // limit   bytes: n*6\n// reference a.rs::b\n// why     c\n";
    let parsed = header::parse(whole).unwrap();
    assert_eq!(parsed.inputs, ["x [n] bf16, 2-byte aligned more of it"]);
    assert_eq!(parsed.arch, [Target::Sm80]);
    for field in ["op", "params", "in", "out", "arch", "launch", "limit", "reference", "why"] {
        let start = format!("// {field} ");
        let keep = |line: &&str| !line.starts_with(&start) && !line.starts_with("//    ");
        let without: String = whole.lines().filter(keep).map(|line| format!("{line}\n")).collect();
        let error = header::parse(&without).unwrap_err();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    for (from, to) in [("bf16", "int7"), ("sm_80", "sm_70"), ("bytes: ", ""), ("// op ", "// ap ")]
    {
        assert!(header::parse(&whole.replacen(from, to, 1)).is_err(), "{to}");
    }
}

/// That the tests do prove them is `proofs --check`'s to say, in .ci/run.
#[test]
fn every_kernel_is_proven_as_it_is_now() {
    let proofs: Value = serde_json::from_str(trail_ptx::PROOFS).unwrap();
    let devices = [("emulator", Target::Sm80), ("emulator of Hopper", Target::Sm90a)];
    for (module, (device, target)) in
        MODULES.iter().flat_map(|module| devices.map(|device| (module, device)))
    {
        let Some(image) = module.image(target) else { continue };
        for entry in module.entries {
            assert_eq!(
                proofs[device]["kernels"][entry.name],
                format!("{:016x}", image.code_hash()),
                "{} for {}: run the kernels' tests, then `cargo run -p trail-ptx --bin proofs` (its head says how)",
                entry.name,
                target.name()
            );
        }
    }
}

/// A grid barrier gives up after 2^22 polls, about three seconds, and so do the producers of wgmma:
/// a launch that lost a block is a fault, and not a device that hangs.
#[test]
fn waits_for_other_threads_give_up_after_seconds() {
    const LIMIT: &str = ", 4194304;";
    let hopper = ["qkv", "residual", "swiglu"].map(|name| format!("sm_90a/hopper/wgmma_{name}"));
    let barriers = ["decode_megakernel", "sample_choose"].map(|name| format!("sm_80/{name}"));
    let attention = "sm_90a/hopper/attention_wgmma".to_owned();
    for name in hopper.iter().chain(&barriers).chain([&attention]) {
        let text = read(&format!("ptx/out/{name}.ptx"));
        for entry in text.split(".visible .entry ").skip(1) {
            let of = entry.split('(').next().unwrap_or_default();
            let count = |what: &str| entry.matches(what).count();
            assert!(count(LIMIT) > 0, "{of}: no limit");
            assert_eq!(count(LIMIT), count("trap;"), "{of}: a limit without its trap");
        }
    }
}
