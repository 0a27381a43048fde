//! Models from GGUF files compute what their safetensors files do.

use std::path::Path;
use std::sync::Arc;

use half::f16;
use trail_runtime::model::gguf::GgufModel;
use trail_runtime::model::{Architecture, Dtype, Model, RopePairing, RopeScaling, Tensor};
use trail_runtime::reference::Reference;

use super::support::{Folder, cpu_logits, load};
use trail_test_support::gguf::{GgufWriter, gguf_of, unchanged};

fn read(file: &GgufWriter) -> Model {
    let bytes = Arc::new(file.file().0);
    let model = GgufModel::from_storage(Path::new("m.gguf"), bytes).expect("a GGUF file");
    model.model().expect("a model")
}

#[test]
fn logits_are_those_of_the_safetensors_files() {
    for (name, tolerance) in [
        ("llama2-bf16", 0.0),
        ("llama3-f16", 0.0),
        ("llama3.2-f32", 1e-4),
        ("llama3.1-f32", 1e-4),
        ("linear-f32", 0.0),
        ("mistral-f32", 0.0),
    ] {
        let (golden, expected) = load(name);
        let found = read(&gguf_of(&expected, unchanged));
        assert_eq!(found.config.rope_pairing, RopePairing::Adjacent);
        assert_eq!(found.config.windows, expected.config.windows, "{name}");
        let found = cpu_logits(&Arc::new(found), &golden.prompt);
        let expected = cpu_logits(&Arc::new(expected), &golden.prompt);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= tolerance, "{name}: {found} {expected}");
        }
    }
}

/// The same for the families beside Llama, where the metadata has all that the safetensors folder's
/// configuration has.
#[test]
fn logits_of_other_families_are_those_of_the_safetensors_files() {
    for name in ["qwen2-bf16", "qwen3-f32", "gemma3-f32", "gemma3-bf16", "phi3-bf16", "granite-f32"]
    {
        let (golden, mut expected) = load(name);
        let is_granite = expected.config.architecture == Architecture::Granite;
        if !is_granite {
            expected.config.attention_scale = None;
        }
        if expected.config.architecture == Architecture::Qwen2 {
            expected.config.windows.fill(None);
        }
        if let RopeScaling::LongRope { attention_factor } = &mut expected.config.rope.scaling {
            *attention_factor = f64::from(*attention_factor as f32); // As in a GGUF file.
        }
        let found = read(&gguf_of(&expected, unchanged));
        let pairing = if is_granite { RopePairing::Adjacent } else { RopePairing::Halves };
        assert_eq!(found.config.rope_pairing, pairing, "{name}");
        assert_eq!(found.config.windows, expected.config.windows, "{name}");
        assert_eq!(found.config.local_rope, expected.config.local_rope, "{name}");
        let scale = (expected.config.hidden_size as f32).sqrt();
        if expected.config.architecture == Architecture::Gemma3 {
            // Transformers rounds the factor to the dtype of the embeddings, llama.cpp does not.
            expected.config.embedding_scale = scale;
        }
        let found = cpu_logits(&Arc::new(found), &golden.prompt);
        assert_eq!(found, cpu_logits(&Arc::new(expected), &golden.prompt), "{name}");
    }
}

/// The same of mixtures of experts: GGUF files have no layer with one MLP among them.
#[test]
fn logits_of_mixtures_are_those_of_the_safetensors_files() {
    for name in ["mixtral-f32", "olmoe-bf16", "qwen2_moe-f32", "qwen3_moe-bf16", "gpt_oss-mxfp4"] {
        let (golden, mut expected) = load(name);
        let dense = std::mem::take(&mut expected.config.mixture.as_mut().unwrap().dense_layers);
        dense.iter().rev().for_each(|&layer| {
            expected.weights.layers.remove(layer);
            expected.config.windows.remove(layer);
        });
        expected.config.num_layers = expected.weights.layers.len();
        let found = read(&gguf_of(&expected, unchanged));
        assert_eq!(found.config.mixture, expected.config.mixture, "{name}");
        let is_mixtral = expected.config.architecture == Architecture::Mixtral;
        let pairing = if is_mixtral { RopePairing::Adjacent } else { RopePairing::Halves };
        assert_eq!(found.config.rope_pairing, pairing, "{name}");
        let found = cpu_logits(&Arc::new(found), &golden.prompt);
        assert_eq!(found, cpu_logits(&Arc::new(expected), &golden.prompt), "{name}");
    }
}

/// The seeds of the fuzz target reach the loader of experts.
#[test]
fn mixtures_among_the_fuzz_seeds_are_models() {
    for name in ["gpt-oss", "qwen2moe"] {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/seeds/gguf");
        let bytes = std::fs::read(seeds.join(format!("{name}.gguf"))).expect(name);
        let file = GgufModel::from_storage(Path::new("m.gguf"), Arc::new(bytes)).expect(name);
        let model = file.model().unwrap_or_else(|error| panic!("{error}"));
        assert!(model.config.mixture.is_some() && !model.config.eos_tokens.contains(&3), "{name}");
    }
}

/// Quantises to Q4_1: for each 32 values a scale and a minimum (f16), then 4 bits a value.
fn q4_1(tensor: &Tensor) -> (u32, Vec<u8>) {
    if !tensor.cols.is_multiple_of(32) {
        return unchanged(tensor);
    }
    let mut bytes = Vec::new();
    for block in tensor.to_f32().chunks_exact(32) {
        let min = block.iter().copied().fold(f32::INFINITY, f32::min);
        let max = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = (max - min) / 15.0;
        bytes.extend(f16::from_f32(scale).to_le_bytes());
        bytes.extend(f16::from_f32(min).to_le_bytes());
        let code = |x: f32| ((x - min) / scale).round().clamp(0.0, 15.0) as u8;
        bytes.extend((0..16).map(|i| code(block[i]) | code(block[i + 16]) << 4));
    }
    (3, bytes)
}

#[test]
fn quantised_weights_stay_as_stored_and_run_in_the_reference_pass() {
    let (golden, original) = load("llama2-f32");
    let quantised = read(&gguf_of(&original, q4_1));
    let layer = &quantised.weights.layers[0];
    assert_eq!([layer.q.dtype, layer.mlp.dense().unwrap().down.dtype], [Dtype::Q4_1, Dtype::F32]);
    let found = Reference::new(&quantised).logits(&golden.prompt);
    // The same file with the values of the blocks as f32.
    fn dequantised(tensor: &Tensor) -> (u32, Vec<u8>) {
        let (kind, bytes) = q4_1(tensor);
        let dtype = if kind == 3 { Dtype::Q4_1 } else { tensor.dtype };
        let tensor = Tensor::new(dtype, tensor.rows, tensor.cols, Arc::new(bytes), 0);
        let values = tensor.expect("as many bytes").to_f32();
        (0, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
    let plain = read(&gguf_of(&original, dequantised));
    assert_eq!(found, Reference::new(&plain).logits(&golden.prompt));
    assert_ne!(found, Reference::new(&original).logits(&golden.prompt));
}

#[test]
fn parts_and_folders_load() {
    let (golden, original) = load("llama2-bf16");
    let expected = cpu_logits(&Arc::new(original.clone()), &golden.prompt);
    let whole = gguf_of(&original, unchanged);
    let folder = Folder::new("parts");
    let [first, second] = whole.split(5);
    let first = folder.write("m-00001-of-00002.gguf", &first.file().0);
    let missing = Model::load(&first).expect_err("a part is missing").to_string();
    assert!(missing.contains("m-00002-of-00002.gguf"), "{missing}");
    let second = folder.write("m-00002-of-00002.gguf", &second.file().0);
    for path in [&first, &second, &folder.0] {
        let model = Model::load(path).expect("a model");
        assert_eq!(cpu_logits(&Arc::new(model), &golden.prompt), expected);
    }
    let file = folder.write("other.gguf", &whole.file().0);
    let two = Model::load(&folder.0).expect_err("two models").to_string();
    assert!(two.contains("2 GGUF files"), "{two}");
    Model::load(&file).expect("a model");
    folder.write("m-00002-of-00002.gguf", &whole.file().0);
    let other = Model::load(&first).expect_err("another split").to_string();
    assert!(other.contains("split.no"), "{other}");
}
