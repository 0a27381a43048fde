//! Builds the files under a crate root from kernel sources: `out/`, `manifest.json`,
//! `src/table.rs`.

use crate::manifest::{Entry, Manifest, Module};
use crate::nvrtc::{Nvrtc, Source};
use crate::{NVRTC_FLAGS, PTXAS_FLAGS, ptxas, sass, table, wheels};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use trail_ptx::{Target, hash, header};

/// The compilers.
pub(crate) struct Tools {
    nvrtc: Nvrtc,
    ptxas: PathBuf,
    ptxas_version: String,
    ptxas_blackwell: PathBuf,
    ptxas_blackwell_version: String,
    pub(crate) nvdisasm: PathBuf,
    nvdisasm_version: String,
}

impl Tools {
    /// Locates and loads the compilers.
    pub(crate) fn find() -> Result<Tools, String> {
        let wheels = wheels::find()?;
        Ok(Tools {
            nvrtc: Nvrtc::load(&wheels.nvrtc)?,
            ptxas_version: version(&wheels.ptxas)?,
            ptxas: wheels.ptxas,
            ptxas_blackwell_version: version(&wheels.ptxas_blackwell)?,
            ptxas_blackwell: wheels.ptxas_blackwell,
            nvdisasm_version: version(&wheels.nvdisasm)?,
            nvdisasm: wheels.nvdisasm,
        })
    }
}

/// The version that a tool of the CUDA toolkit prints, such as `V12.4.131`.
fn version(tool: &Path) -> Result<String, String> {
    let output = Command::new(tool).arg("--version").output();
    let output = output.map_err(|error| format!("{}: {error}", tool.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(", ").find(|part| part.starts_with('V')).unwrap_or("unknown");
    Ok(version.split_whitespace().next().unwrap_or("unknown").to_owned())
}

/// Compiles the changed sources (with `all`: all) under `root` into `destination`. With `names`,
/// only these.
pub(crate) fn build(
    root: &Path,
    destination: &Path,
    tools: &Tools,
    all: bool,
    names: &[String],
) -> Result<(), String> {
    let kernels = root.join("kernels");
    let old = read_manifest(&destination.join("manifest.json"));
    let mut manifest = Manifest { modules: BTreeMap::new(), ..described(tools) };
    let mut changed = Vec::new();
    let same_tools = old.tools == manifest.tools && old.flags == manifest.flags;
    for source in sources(&kernels)? {
        let name = source.trim_end_matches(".cu").to_owned();
        let wanted = names.is_empty() || names.contains(&name);
        let hash = hash::of_source(&kernels, &source).map_err(|error| error.to_string())?;
        let hash = format!("{hash:016x}");
        let known = old.modules.get(&name).filter(|module| complete(destination, &name, module));
        let fresh = known.filter(|module| same_tools && module.source_hash == hash);
        match (fresh, known) {
            (Some(module), _) if !all => drop(manifest.modules.insert(name, module.clone())),
            (_, Some(module)) if !wanted => drop(manifest.modules.insert(name, module.clone())),
            (_, None) if !wanted => {}
            _ => changed.push((source, hash)),
        }
    }
    let mut failures = Vec::new();
    for (source, module) in compile_all(root, destination, tools, &changed) {
        match module {
            Ok(module) => {
                manifest.modules.insert(source.trim_end_matches(".cu").to_owned(), module);
            }
            Err(error) => failures.push(format!("kernels/{source}: {error}")),
        }
    }
    remove_orphans(destination, &old, &manifest);
    unique_entries(&manifest)?;
    let text = serde_json::to_string_pretty(&manifest).map_err(|error| error.to_string())?;
    write(&destination.join("manifest.json"), (text + "\n").as_bytes())?;
    write(&destination.join("src/table.rs"), table::render(&manifest).as_bytes())?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Compiles `sources`, each with its hash, on all cores; returns them in their order.
fn compile_all(
    root: &Path,
    destination: &Path,
    tools: &Tools,
    sources: &[(String, String)],
) -> Vec<(String, Result<Module, String>)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((source, hash)) = sources.get(index) else { return done };
            println!("{source}");
            let module = compile(root, destination, tools, source, hash.clone());
            done.push((index, source.clone(), module));
        }
    };
    let mut done = thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |worker: thread::ScopedJoinHandle<_>| worker.join().expect("no panic");
        workers.into_iter().flat_map(join).collect::<Vec<_>>()
    });
    done.sort_by_key(|(index, ..)| *index);
    done.into_iter().map(|(_, source, module)| (source, module)).collect()
}

/// Returns a manifest without modules: versions and flags of this build.
fn described(tools: &Tools) -> Manifest {
    let owned = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect();
    Manifest {
        tools: BTreeMap::from([
            ("nvrtc".into(), tools.nvrtc.version.clone()),
            ("ptxas".into(), tools.ptxas_version.clone()),
            ("ptxas of Blackwell".into(), tools.ptxas_blackwell_version.clone()),
            ("nvdisasm".into(), tools.nvdisasm_version.clone()),
        ]),
        flags: BTreeMap::from([
            ("nvrtc".into(), owned(&NVRTC_FLAGS)),
            ("ptxas".into(), owned(&PTXAS_FLAGS)),
        ]),
        modules: BTreeMap::new(),
    }
}

fn compile(
    root: &Path,
    destination: &Path,
    tools: &Tools,
    source: &str,
    source_hash: String,
) -> Result<Module, String> {
    let kernels = root.join("kernels");
    let text = read(&kernels.join(source))?;
    let contract = header::parse(&text)?;
    let includes = hash::includes(&kernels, &text).map_err(|error| error.to_string())?;
    let headers = includes
        .into_iter()
        .map(|name| read(&kernels.join(&name)).map(|text| (name, text)))
        .collect::<Result<Vec<_>, String>>()?;
    let name = source.trim_end_matches(".cu");
    let mut module = Module {
        source: format!("kernels/{source}"),
        source_hash,
        ptx: Vec::new(),
        cubin: Vec::new(),
        entries: BTreeMap::new(),
    };
    for target in Target::ALL {
        let own_text = contract.arch.contains(&target);
        // The teaching kernels are for the devices that they were measured on.
        let is_left_out = target.is_blackwell() && name.starts_with("ladder/");
        if !own_text && (is_left_out || !contract.arch.contains(&Target::Sm80)) {
            continue;
        }
        let text_target = if own_text { target } else { Target::Sm80 };
        let ptx = destination.join(format!("out/{}/{name}.ptx", text_target.name()));
        if own_text {
            let mut flags: Vec<String> = NVRTC_FLAGS.iter().map(|flag| flag.to_string()).collect();
            flags.push(format!("--gpu-architecture={}", target.name().replace("sm_", "compute_")));
            let program_name = format!("kernels/{source}");
            let program = Source { name: &program_name, text: &text, headers: &headers };
            let compiled = tools.nvrtc.compile(&program, &flags)?;
            write(&ptx, compiled.as_bytes())?;
            collect_entries(&mut module, &compiled, &contract.params)?;
            module.ptx.push(target.name().into());
        }
        let cubin = destination.join(format!("out/{}/{name}.cubin", target.name()));
        assemble(tools, &mut module, target, &ptx, &cubin)?;
    }
    Ok(module)
}

/// Assembles `ptx` to `cubin`, and adds the reports of its kernels to `module`.
fn assemble(
    tools: &Tools,
    module: &mut Module,
    target: Target,
    ptx: &Path,
    cubin: &Path,
) -> Result<(), String> {
    make_folder(cubin)?;
    let ptxas = if target.is_blackwell() { &tools.ptxas_blackwell } else { &tools.ptxas };
    let resources = ptxas::assemble(ptxas, &PTXAS_FLAGS, target, ptx, cubin)?;
    // The text of sm_80, which drivers compile too, by each of the compilers.
    if matches!(target, Target::Sm80 | Target::Sm120) {
        ptxas::refuse_contractions(ptxas, &PTXAS_FLAGS, target, ptx, cubin, &module.entries)?;
    }
    module.cubin.push(target.name().into());
    let unknown = |entry: &str| format!("{entry}: not in the PTX");
    for (entry, found) in resources {
        let known = module.entries.get_mut(&entry).ok_or_else(|| unknown(&entry))?;
        known.resources.insert(target.name().into(), found);
    }
    for (entry, found) in sass::report(&tools.nvdisasm, cubin)? {
        let known = module.entries.get_mut(&entry).ok_or_else(|| unknown(&entry))?;
        known.sass.insert(target.name().into(), found);
    }
    Ok(())
}

/// Adds the `.entry` directives of a PTX text with their one parameter.
fn collect_entries(module: &mut Module, ptx: &str, params: &str) -> Result<(), String> {
    for piece in ptx.split(".entry ").skip(1) {
        let (name, rest) = piece.split_once('(').ok_or("an .entry without parameters")?;
        let (list, _) = rest.split_once(')').ok_or("an .entry that does not close")?;
        let name = name.trim();
        if list.matches(".param").count() != 1 {
            return Err(format!("{name} must take exactly one parameter, has: {list}"));
        }
        let wrong = || format!("{name}: parameter not understood: {list}");
        let align = list.split_once(".align ").ok_or_else(wrong)?.1;
        let align = align.split_whitespace().next().and_then(|word| word.parse().ok());
        let bytes = list.split_once('[').and_then(|(_, rest)| rest.split(']').next()?.parse().ok());
        let entry = Entry {
            params: params.to_owned(),
            param_bytes: bytes.ok_or_else(wrong)?,
            param_align: align.ok_or_else(wrong)?,
            resources: BTreeMap::new(),
            sass: BTreeMap::new(),
        };
        let known = module.entries.entry(name.to_owned()).or_insert_with(|| entry.clone());
        if (known.param_bytes, known.param_align) != (entry.param_bytes, entry.param_align) {
            return Err(format!("{name}: the parameter differs between targets"));
        }
    }
    Ok(())
}

fn unique_entries(manifest: &Manifest) -> Result<(), String> {
    let mut owner = BTreeMap::new();
    for (name, module) in &manifest.modules {
        for entry in module.entries.keys() {
            if let Some(other) = owner.insert(entry, name) {
                return Err(format!("kernel {entry} is in {other} and in {name}"));
            }
        }
    }
    Ok(())
}

/// Removes the files of modules and targets that no longer exist.
fn remove_orphans(destination: &Path, old: &Manifest, new: &Manifest) {
    for (name, module) in &old.modules {
        let still = new.modules.get(name);
        for (kind, targets) in [("ptx", &module.ptx), ("cubin", &module.cubin)] {
            for target in targets {
                let kept =
                    still.map(|module| if kind == "ptx" { &module.ptx } else { &module.cubin });
                if !kept.is_some_and(|kept| kept.contains(target)) {
                    let path = destination.join(format!("out/{target}/{name}.{kind}"));
                    let _ = std::fs::remove_file(path);
                }
            }
        }
    }
}

/// Returns true if all files that the manifest names for `name` exist.
fn complete(destination: &Path, name: &str, module: &Module) -> bool {
    let exists = |kind: &str, target: &String| {
        destination.join(format!("out/{target}/{name}.{kind}")).exists()
    };
    module.ptx.iter().all(|target| exists("ptx", target))
        && module.cubin.iter().all(|target| exists("cubin", target))
}

/// Names of all `.cu` files, relative to the kernels folder, sorted.
fn sources(kernels: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for prefix in ["", "hopper/", "ladder/"] {
        let folder = kernels.join(prefix);
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let name = entry.map_err(|error| error.to_string())?.file_name();
            let name = name.to_string_lossy().into_owned();
            if name.ends_with(".cu") {
                found.push(format!("{prefix}{name}"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads the old manifest. A missing or broken one (after a merge conflict) counts as empty, so
/// that everything is compiled.
fn read_manifest(path: &Path) -> Manifest {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn make_folder(path: &Path) -> Result<(), String> {
    let folder = path.parent().ok_or("a path without a folder")?;
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    make_folder(path)?;
    std::fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}
