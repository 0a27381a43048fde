//! Weights are used in place, in the mapped file.

use std::path::Path;
use std::sync::Arc;

use trail_runtime::model::{Archive, Model, ModelConfig, Tensor, Weights};

fn golden() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama3-f16")
}

fn matrices(weights: &Weights) -> Vec<&Tensor> {
    let mut all = vec![&weights.embed, &weights.lm_head];
    for layer in &weights.layers {
        all.extend(layer.matrices());
    }
    all
}

#[test]
fn matrices_point_into_the_storage() {
    let bytes = Arc::new(std::fs::read(golden().join("model.safetensors")).expect("weights"));
    let range = bytes.as_ptr_range();
    let archive = Archive::from_storage(Path::new("m.safetensors"), bytes.clone());
    let config = ModelConfig::load(&golden()).expect("a config");
    let model = Model::from_archive(config, archive.expect("an archive")).expect("a model");
    for tensor in matrices(&model.weights) {
        let at = tensor.bytes().as_ptr_range();
        assert!(range.start <= at.start && at.end <= range.end, "{tensor:?}");
    }
}

/// /proc/self/maps names the file of each mapped address.
#[cfg(target_os = "linux")]
#[test]
fn matrices_point_into_the_mapped_file() {
    let model = Model::load(&golden()).expect("a model");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let file = golden().join("model.safetensors").canonicalize().expect("a path");
    let range = |line: &str| {
        let (begin, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(usize::from_str_radix(begin, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let of_file = maps.lines().filter(|line| line.ends_with(&*file.to_string_lossy()));
    let mapped: Vec<_> = of_file.filter_map(range).collect();
    for tensor in matrices(&model.weights) {
        let begin = tensor.bytes().as_ptr() as usize;
        assert!(mapped.iter().any(|range| range.contains(&begin)), "{tensor:?}");
    }
}
