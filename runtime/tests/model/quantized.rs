//! Quantized checkpoints: those that the packages of the hub wrote, against transformers on the
//! weights that the same packages unpack; every layout against a plain packer; and refusals.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype as Stored;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use trail_platform::Rng;
use trail_runtime::model::{Archive, Dtype, LoadError, Model, ModelConfig, Quantization, Tensor};
use trail_runtime::reference::Reference;
use trail_test_support::golden::{Golden, check};
use trail_test_support::small::{message, small_model};

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-quantized")
}

/// The type of each checkpoint's matrices, and the words of `inspect`.
const LOADED: [(&str, Dtype, &str); 8] = [
    ("awq", Dtype::Q5_0, "AWQ, 4 bits, groups of 64, repacked"),
    ("fp8-block", Dtype::Bf16, "FP8 with scales by 32x64, widened to bf16"),
    ("fp8-channel", Dtype::Bf16, "FP8, widened to bf16"),
    ("fp8-tensor", Dtype::Bf16, "FP8, widened to bf16"),
    ("gptq", Dtype::Q4_0, "GPTQ, 4 bits, groups of 32, repacked"),
    ("gptq-act-order", Dtype::F16, "GPTQ, 4 bits, groups of 32, act-order, widened to f16"),
    ("gptq-v2", Dtype::Q5_0, "GPTQ (v2), 4 bits, a scale a row, repacked"),
    ("packed", Dtype::Q5_0, "compressed-tensors, 4 bits, groups of 32, repacked"),
];

#[test]
fn checkpoints_of_the_hub_are_the_models_that_transformers_unpacks() {
    let all = Golden::all(&golden_folder());
    assert_eq!(all.iter().map(Golden::name).collect::<Vec<_>>(), LOADED.map(|(name, ..)| name));
    for (golden, (name, dtype, words)) in all.iter().zip(LOADED) {
        let model = Model::load(&golden.folder).expect(name);
        let layer = &model.weights.layers[0];
        let mlp = layer.mlp.dense().expect("a dense model");
        let matrices = [&layer.q, &layer.k, &layer.v, &layer.o, &mlp.gate, &mlp.up, &mlp.down];
        assert!(matrices.iter().all(|matrix| matrix.dtype == dtype), "{name}: {matrices:?}");
        assert_eq!(model.weights.embed.dtype, Dtype::F16);
        let found = Quantization::load(&golden.folder).expect(name).expect(name);
        assert_eq!(found.to_string(), words);
        let reference = Reference::new(&model);
        let error = check(golden, |tokens| reference.logits(tokens).pop().expect("a token"));
        println!("{name:22} log probabilities within {error:.1e}");
    }
}

/// Tensors of a safetensors file, by name.
type Tensors = HashMap<String, (Stored, Vec<usize>, Vec<u8>)>;

fn archive(tensors: &Tensors) -> Archive {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    let file = safetensors::serialize(views, None).expect("a file");
    Archive::from_storage(Path::new("m.safetensors"), Arc::new(file)).expect("an archive")
}

fn matrix(
    tensors: &Tensors,
    quantization: Quantization,
    (rows, cols): (usize, usize),
) -> Result<Tensor, LoadError> {
    let mut archive = archive(tensors).quantized(Some(quantization))?;
    let tensor = archive.matrix("m.weight", rows, cols)?;
    assert_eq!(archive.rest(), [""; 0], "every tensor is read or left out");
    Ok(tensor)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
}

/// A matrix of codes: its weights are `scale * (code - zero)`.
struct Codes {
    rows: usize,
    cols: usize,
    group_of: Vec<usize>,
    /// `[rows][cols]`
    codes: Vec<u32>,
    /// `[rows][groups]`
    zeros: Vec<u32>,
    /// `[rows][groups]`, values of f16.
    scales: Vec<f32>,
}

impl Codes {
    fn random((rows, cols): (usize, usize), group: usize, symmetric: bool, seed: u64) -> Codes {
        let mut rng = Rng::new(seed);
        let mut below = |bound| rng.below(bound) as u32;
        let groups = cols / group;
        Codes {
            rows,
            cols,
            group_of: (0..cols).map(|col| col / group).collect(),
            codes: (0..rows * cols).map(|_| below(16)).collect(),
            zeros: (0..rows * groups).map(|_| if symmetric { 8 } else { below(16) }).collect(),
            scales: (0..rows * groups)
                .map(|_| f16::from_f32((1 + below(1000)) as f32 / 7000.0).to_f32())
                .collect(),
        }
    }

    fn groups(&self) -> usize {
        self.zeros.len() / self.rows
    }

    fn weights(&self) -> Vec<f32> {
        let weight = |at: usize| {
            let (row, col) = (at / self.cols, at % self.cols);
            let group = row * self.groups() + self.group_of[col];
            self.scales[group] * (self.codes[at] as f32 - self.zeros[group] as f32)
        };
        (0..self.rows * self.cols).map(weight).collect()
    }

    /// As a file of `quantization` has them: by the definitions in the packages, word by word.
    fn tensors(&self, quantization: Quantization) -> Tensors {
        let (rows, cols, groups) = (self.rows, self.cols, self.groups());
        let code = |row: usize, col: usize| self.codes[row * cols + col];
        let zero = |row: usize, group: usize| self.zeros[row * groups + group];
        let scale = |row: usize, group: usize| self.scales[row * groups + group];
        let pack = |order: [usize; 8], value: &dyn Fn(usize) -> u32| {
            order.iter().enumerate().fold(0, |word, (at, &from)| word | value(from) << (4 * at))
        };
        let straight = [0, 1, 2, 3, 4, 5, 6, 7];
        let by = |outer: usize, inner: usize, value: &dyn Fn(usize, usize) -> u32| {
            let all = (0..outer).flat_map(|i| (0..inner).map(move |j| (i, j)));
            words(&all.map(|(i, j)| value(i, j)).collect::<Vec<_>>())
        };
        let mut tensors = Tensors::new();
        let mut add = |name: &str, dtype, shape: [usize; 2], bytes| {
            tensors.insert(format!("m.{name}"), (dtype, shape.to_vec(), bytes));
        };
        let scales_by_group: Vec<f32> =
            (0..groups).flat_map(|g| (0..rows).map(move |r| scale(r, g))).collect();
        match quantization {
            Quantization::Gptq { zeros_less_one, .. } => {
                let codes = by(cols / 8, rows, &|i, row| pack(straight, &|j| code(row, 8 * i + j)));
                // GPTQModel subtracts from whole words: a zero point of 0 borrows from the next.
                let less = if zeros_less_one { 0x1111_1111 } else { 0 };
                let zeros = by(groups, rows / 8, &|g, i| {
                    pack(straight, &|j| zero(8 * i + j, g)).wrapping_sub(less)
                });
                add("qweight", Stored::I32, [cols / 8, rows], codes);
                add("qzeros", Stored::I32, [groups, rows / 8], zeros);
                add("scales", Stored::F16, [groups, rows], halves(&scales_by_group));
            }
            Quantization::Awq { .. } => {
                let order = [0, 2, 4, 6, 1, 3, 5, 7];
                let codes = by(cols, rows / 8, &|col, i| pack(order, &|j| code(8 * i + j, col)));
                let zeros = by(groups, rows / 8, &|g, i| pack(order, &|j| zero(8 * i + j, g)));
                add("qweight", Stored::I32, [cols, rows / 8], codes);
                add("qzeros", Stored::I32, [groups, rows / 8], zeros);
                add("scales", Stored::F16, [groups, rows], halves(&scales_by_group));
            }
            Quantization::Packed { symmetric, .. } => {
                let codes = by(rows, cols / 8, &|row, i| pack(straight, &|j| code(row, 8 * i + j)));
                let zeros = by(rows / 8, groups, &|i, g| pack(straight, &|j| zero(8 * i + j, g)));
                add("weight_packed", Stored::I32, [rows, cols / 8], codes);
                if !symmetric {
                    add("weight_zero_point", Stored::I32, [rows / 8, groups], zeros);
                }
                add("weight_scale", Stored::F16, [rows, groups], halves(&self.scales));
            }
            Quantization::Fp8 { .. } => unreachable!("codes of 4 bits"),
        }
        tensors
    }
}

const SHAPE: (usize, usize) = (24, 256);

/// Exact: a block has the scale and an integer, so that widening it multiplies the same numbers.
#[test]
fn blocks_hold_every_weight_of_every_layout() {
    for (seed, group) in [32, 64, 128, 256].into_iter().enumerate() {
        for symmetric in [true, false] {
            let codes = Codes::random(SHAPE, group, symmetric, seed as u64);
            let group = (group < SHAPE.1).then_some(group);
            for quantization in [
                Quantization::Gptq { group, zeros_less_one: true, act_order: false },
                Quantization::Gptq { group, zeros_less_one: false, act_order: false },
                Quantization::Awq { group },
                Quantization::Packed { group, symmetric },
            ] {
                let tensor = matrix(&codes.tensors(quantization), quantization, SHAPE);
                let tensor = tensor.expect("a matrix");
                let dtype = if symmetric { Dtype::Q4_0 } else { Dtype::Q5_0 };
                assert_eq!((tensor.dtype, tensor.to_f32()), (dtype, codes.weights()));
            }
        }
    }
}

/// Groups of whole blocks in another order stay blocks; mixed ones are rounded to f16.
#[test]
fn columns_have_the_group_that_g_idx_says() {
    let quantization =
        Quantization::Gptq { group: Some(32), zeros_less_one: true, act_order: false };
    let mut codes = Codes::random(SHAPE, 32, false, 5);
    let with_order = |codes: &Codes| {
        let order: Vec<u32> = codes.group_of.iter().map(|group| *group as u32).collect();
        let mut tensors = codes.tensors(quantization);
        tensors.insert("m.g_idx".into(), (Stored::I32, vec![SHAPE.1], words(&order)));
        matrix(&tensors, quantization, SHAPE).expect("a matrix")
    };
    codes.group_of.rotate_left(64);
    let tensor = with_order(&codes);
    assert_eq!((tensor.dtype, tensor.to_f32()), (Dtype::Q5_0, codes.weights()));
    codes.group_of.rotate_left(5);
    let tensor = with_order(&codes);
    let rounded: Vec<f32> =
        codes.weights().iter().map(|weight| f16::from_f32(*weight).to_f32()).collect();
    assert_eq!((tensor.dtype, tensor.to_f32()), (Dtype::F16, rounded));
}

#[test]
fn scales_that_f16_does_not_hold_widen_a_matrix() {
    let quantization = Quantization::Packed { group: Some(64), symmetric: true };
    let mut codes = Codes::random(SHAPE, 64, true, 6);
    codes.scales[3] = 1e-7;
    let mut tensors = codes.tensors(quantization);
    let scales = codes.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let shape = vec![SHAPE.0, codes.groups()];
    tensors.insert("m.weight_scale".into(), (Stored::F32, shape, scales));
    let tensor = matrix(&tensors, quantization, SHAPE).expect("a matrix");
    assert_eq!((tensor.dtype, tensor.to_f32()), (Dtype::F32, codes.weights()));
}

/// Blocks of 128 x 128 with shorter ones at the ends, scales of rows, and one scale.
#[test]
fn fp8_is_the_code_times_the_scale_of_its_block() {
    let (rows, cols) = (200, 150);
    let mut rng = Rng::new(7);
    // No NaN (0x7f, 0xff).
    let codes: Vec<u8> =
        (0..rows * cols).map(|_| rng.below(127) as u8 | (rng.below(2) as u8) << 7).collect();
    let value = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match exponent {
            0 => mantissa / 512.0,
            _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
        };
        if code < 128 { magnitude } else { -magnitude }
    };
    for (block, (high, wide), shape) in [
        (Some([128, 128]), (128, 128), vec![2, 2]),
        (None, (1, cols), vec![rows, 1]),
        (None, (rows, cols), vec![]),
        (None, (rows, cols), vec![1]),
    ] {
        let count = shape.iter().product::<usize>();
        let scales: Vec<f32> = (0..count).map(|_| 0.001 + rng.uniform() as f32).collect();
        let stored = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let quantization = Quantization::Fp8 { scale: "weight_scale", block };
        let tensors = Tensors::from([
            ("m.weight".into(), (Stored::F8_E4M3, vec![rows, cols], codes.clone())),
            ("m.weight_scale".into(), (Stored::F32, shape, stored)),
            ("m.input_scale".into(), (Stored::F32, vec![], words(&[0]))),
        ]);
        let tensor = matrix(&tensors, quantization, (rows, cols)).expect("a matrix");
        let across = cols.div_ceil(wide);
        let expected: Vec<f32> = (0..rows * cols)
            .map(|at| (value(codes[at]), scales[at / cols / high * across + at % cols / wide]))
            .map(|(value, scale)| bf16::from_f32(value * scale).to_f32())
            .collect();
        assert_eq!((tensor.dtype, tensor.to_f32()), (Dtype::Bf16, expected));
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let gptq = Quantization::Gptq { group: Some(32), zeros_less_one: true, act_order: false };
    let packed = Quantization::Packed { group: None, symmetric: false };
    let table = [
        (gptq, "m.scales", None, "F16 or BF16 or F32 [8, 24], found no such tensor"),
        (gptq, "m.qzeros", None, "I32 [8, 3], found no such tensor"),
        (gptq, "m.scales", Some((Stored::F16, vec![24, 8])), "[8, 24], found F16 [24, 8]"),
        (gptq, "m.scales", Some((Stored::I16, vec![8, 24])), "found I16 [8, 24]"),
        // 8 bits have twice the words, 3 bits no whole number of a code.
        (gptq, "m.qweight", Some((Stored::I32, vec![64, 24])), "I32 [32, 24], found I32 [64, 24]"),
        (gptq, "m.qweight", Some((Stored::I32, vec![24, 24])), "I32 [32, 24], found I32 [24, 24]"),
        (gptq, "m.g_idx", Some((Stored::I32, vec![24])), "I32 [256], found I32 [24]"),
        (packed, "m.weight_zero_point", None, "I32 [3, 1], found no such tensor"),
    ];
    for (quantization, name, change, part) in table {
        let group = if quantization == gptq { 32 } else { SHAPE.1 };
        let mut tensors = Codes::random(SHAPE, group, false, 8).tensors(quantization);
        tensors.remove(name);
        if let Some((dtype, shape)) = change {
            let bytes = vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8];
            tensors.insert(name.into(), (dtype, shape, bytes));
        }
        let refusal = message(&matrix(&tensors, quantization, SHAPE).expect_err(name));
        assert!(refusal.contains(name) && refusal.contains(part), "{part:?} in {refusal:?}");
    }
    let mut tensors = Codes::random(SHAPE, 32, false, 8).tensors(gptq);
    let order = words(&[8; 256]);
    tensors.insert("m.g_idx".into(), (Stored::I32, vec![256], order));
    let refusal = message(&matrix(&tensors, gptq, SHAPE).expect_err("a group"));
    assert!(refusal.contains("m.g_idx") && refusal.contains("groups below 8"), "{refusal}");
    let fp8 = Quantization::Fp8 { scale: "weight_scale_inv", block: Some([128, 128]) };
    let weight = ("m.weight".to_owned(), (Stored::F8_E4M3, vec![24, 256], vec![0; 24 * 256]));
    let mut tensors = Tensors::from([weight]);
    let refusal = message(&matrix(&tensors, fp8, SHAPE).expect_err("no scale"));
    assert!(refusal.contains("m.weight_scale_inv: expected a scale"), "{refusal}");
    tensors.insert("m.weight_scale_inv".into(), (Stored::F32, vec![2, 2], vec![0; 16]));
    let refusal = message(&matrix(&tensors, fp8, SHAPE).expect_err("another grid"));
    assert!(refusal.contains("F32 [1, 2], found F32 [2, 2]"), "{refusal}");
}

#[test]
fn settings_that_are_not_loaded_are_named() {
    let groups = |weights: Value| json!({"group_0": {"weights": weights}});
    let int4 = json!({"num_bits": 4, "type": "int", "group_size": 128});
    let table = [
        (json!({"bits": 4}), "quant_method", "GPTQ, AWQ or"),
        (json!({"quant_method": "bitsandbytes"}), "quant_method", "found \"bitsandbytes\""),
        (json!({"quant_method": "gptq", "bits": 8}), "bits", "expected 4, found 8"),
        (json!({"quant_method": "gptq"}), "bits", "expected 4, found no such key"),
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 48}), "group_size", "or -1"),
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "group_size", "or -1"),
        (
            json!({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {}}}),
            "dynamic",
            "one setting",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
            "checkpoint_format",
            "gptq or gptq_v2",
        ),
        (json!({"quant_method": "awq", "bits": 4, "version": "gemv"}), "version", "gemm"),
        (json!({"quant_method": "awq", "w_bit": 3}), "w_bit", "expected 4, found 3"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fmt", "e4m3"),
        (json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size", "two"),
        (json!({"quant_method": "fp8", "weight_block_size": [0, 1]}), "weight_block_size", "two"),
        (json!({"quant_method": "compressed-tensors"}), "config_groups", "no such key"),
        (
            json!({"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}}),
            "config_groups",
            "one group",
        ),
        (
            json!({"quant_method": "compressed-tensors", "config_groups": groups(json!(null))}),
            "group_0",
            "with weights",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "marlin-24",
                "config_groups": groups(int4.clone())}),
            "format",
            "pack-quantized",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": groups(json!({"num_bits": 8, "type": "int"}))}),
            "config_groups.weights.num_bits",
            "expected 4, found 8",
        ),
    ];
    let mut config: Value = serde_json::from_slice(&small_model().0).expect("config");
    for (settings, key, part) in table {
        config["quantization_config"] = settings;
        let bytes = config.to_string();
        let refusal = ModelConfig::from_json(Path::new("config.json"), bytes.as_bytes());
        let refusal = message(&refusal.expect_err(key));
        assert!(refusal.contains(key) && refusal.contains(part), "{part:?} in {refusal:?}");
    }
}
