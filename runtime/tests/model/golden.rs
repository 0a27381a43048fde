//! The loader, the reference forward pass and the CPU backend against transformers, for every
//! supported variant and dtype.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{Compute, CpuForward, CpuOptions, Isa};
use trail_runtime::model::gguf::GgufModel;
use trail_runtime::model::{
    Activation, Adapter, DeltaNet, Dtype, LayerWeights, MixtureConfig, Mlp, Model, ModelConfig,
    RopeScaling, Tensor,
};
use trail_runtime::reference::Reference;
use trail_test_support::gguf::{gguf_of, unchanged};
use trail_test_support::golden::{Golden, MAX_LOGPROB_ERROR, check, log_softmax};

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn load(name: &str) -> (Golden, Model) {
    let golden = Golden::load(&golden_folder().join(name));
    let model = Model::load(&golden.folder).expect(name);
    (golden, model)
}

/// The logits of the last position.
pub(crate) fn last(mut logits: Vec<Vec<f32>>) -> Vec<f32> {
    logits.pop().expect("a token")
}

#[test]
fn reference_agrees_with_transformers() {
    let all = Golden::all(&golden_folder());
    assert_eq!(all.len(), 14 * 3 + 2 + 5 * 2 + 2 * 2 + 4 * 2);
    for golden in all {
        let model = Model::load(&golden.folder).expect("a model");
        let reference = Reference::new(&model);
        let error = check(&golden, |tokens| last(reference.logits(tokens)));
        println!("{:22} log probabilities within {error:.1e}", golden.name());
    }
}

#[test]
fn hidden_states_agree_with_transformers() {
    for golden in Golden::all(&golden_folder()) {
        let model = Model::load(&golden.folder).expect("a model");
        let trace = Reference::new(&model).trace(&golden.prompt);
        assert_eq!(trace.hidden.len(), golden.hidden.len());
        for (layer, (found, expected)) in trace.hidden.iter().zip(&golden.hidden).enumerate() {
            let found = found.last().expect("a position");
            assert_eq!(found.len(), expected.len());
            for (x, y) in found.iter().zip(expected) {
                let close = (x - y).abs() <= 1e-4 * (1.0 + y.abs());
                assert!(close, "{}, layer {layer}: {x} instead of {y}", golden.name());
            }
        }
    }
}

const HYBRIDS: [&str; 2] = ["qwen3_5-f32", "qwen3_next-f32"];

/// Models, the feature of their variant, and its removal.
type LeftOut = (&'static [&'static str], &'static str, fn(&mut Model));

const LEFT_OUT: [LeftOut; 43] = [
    (
        &["mistral-f32", "ministral-f32", "qwen2-f32", "gemma3-f32", "phi3_short-f32"],
        "window",
        |model| model.config.windows.fill(None),
    ),
    (&["phi3-f32", "phi3_short-f32"], "partial RoPE of Phi", |model| {
        (model.config.rotary_dim, model.config.long_rope) = (None, None);
    }),
    (&["phi3-f32", "phi3_short-f32"], "factors of LongRoPE", |model| {
        model.config.long_rope = None;
    }),
    (&["phi3-f32"], "LongRoPE's factor of queries and keys", |model| {
        model.config.rope.scaling = RopeScaling::None;
    }),
    (&["granite-f32"], "factor of the scores", |model| model.config.attention_scale = None),
    (&["granite-f32"], "factor of the embedding", |model| model.config.embedding_scale = 1.0),
    (&["granite-f32"], "factor of the blocks", |model| model.config.residual_multiplier = 1.0),
    (&["granite-f32"], "divisor of the logits", |model| model.config.logits_scaling = 1.0),
    (&["phi3-f32"], "order of gate and up", |model| {
        each_layer(model, |layer| {
            let Mlp::Dense(mlp) = &mut layer.mlp else { return };
            std::mem::swap(&mut mlp.gate, &mut mlp.up);
        });
    }),
    (
        &["llama3.1-f32", "llama3.2-f32", "linear-f32", "rope_parameters-f32", "gemma3-f32"],
        "scaling",
        |model| model.config.rope.scaling = RopeScaling::None,
    ),
    (
        &["llama3-f32", "ministral-f32", "qwen2-f32", "qwen3-f32", "smollm2-f32", "smollm3-f32"],
        "theta",
        |model| model.config.rope.theta = 10_000.0,
    ),
    (&["qwen2-f32"], "biases", |model| each_layer(model, |layer| layer.qkv_bias = None)),
    (&["qwen2-f32"], "bias of v", |model| {
        each_layer(model, |layer| layer.qkv_bias.as_mut().expect("biases").v.fill(0.0));
    }),
    (&["qwen3_moe-f32", "mixtral-f32"], "sum of the weights", |model| {
        mixture(model).normalized = false;
    }),
    (&["qwen2_moe-f32", "olmoe-f32"], "softmax of all scores", |model| {
        mixture(model).normalized = true;
    }),
    (&["mixtral-f32", "olmoe-f32", "qwen2_moe-f32", "qwen3_moe-f32"], "an expert", |model| {
        mixture(model).experts_per_token -= 1;
    }),
    (&["gpt_oss-f32", "gpt_oss-mxfp4"], "sinks", |model| {
        each_layer(model, |layer| layer.sinks = None);
    }),
    (&["gpt_oss-f32"], "windows", |model| model.config.windows.fill(None)),
    (&["gpt_oss-f32"], "YaRN", |model| model.config.rope.scaling = RopeScaling::None),
    (&["gpt_oss-f32"], "YaRN's factor of queries and keys", |model| {
        let RopeScaling::Yarn(yarn) = &mut model.config.rope.scaling else { panic!("YaRN") };
        yarn.attention_factor = 1.0;
    }),
    (&["gpt_oss-f32"], "bias of o", |model| each_layer(model, |layer| layer.o_bias = None)),
    (&["gpt_oss-f32"], "biases of the router and the experts", |model| {
        each_layer(model, |layer| {
            let Mlp::Mixture(mixture) = &mut layer.mlp else { return };
            mixture.router_bias = None;
            mixture.experts.iter_mut().for_each(|expert| expert.bias = None);
        });
    }),
    (&["gpt_oss-f32"], "its SwiGLU", |model| model.config.activation = Activation::Silu),
    (&["qwen2_moe-f32", "qwen3_next-f32"], "gate of the shared expert", |model| {
        each_layer(model, |layer| {
            let Mlp::Mixture(mixture) = &mut layer.mlp else { return };
            let gate = mixture.router.rows - 1;
            let without = |row, value| if row == gate { 0.0 } else { value };
            mixture.router = with_values(&mixture.router, without);
        });
    }),
    (&["qwen3-f32", "qwen3_moe-f32", "olmoe-f32", "gemma3-f32"], "q and k norms", |model| {
        each_layer(model, |layer| layer.qk_norm = None);
    }),
    (&HYBRIDS, "partial RoPE", |model| model.config.rotary_dim = None),
    (&HYBRIDS, "q and k norms of hybrids", |model| each_layer(model, |l| l.qk_norm = None)),
    (&HYBRIDS, "decay", |model| each_net(model, |net| net.decay.fill(0.0))),
    (&HYBRIDS, "bias of the decay", |model| each_net(model, |net| net.decay_bias.fill(0.0))),
    (&HYBRIDS, "convolution", |model| {
        each_net(model, |net| {
            let last = net.conv.len() / 4 * 3;
            net.conv[..last].fill(0.0);
        });
    }),
    (&HYBRIDS, "norm of the heads", |model| each_net(model, |net| net.norm.fill(1.0))),
    (&HYBRIDS, "gate of the heads", |model| {
        each_net(model, |net| net.gate = with_values(&net.gate, |_, _| 0.5));
    }),
    (&HYBRIDS, "weight of the update", |model| {
        let heads = model.config.delta_net.as_ref().expect("gated delta nets").value_heads;
        assert_eq!(heads, 4);
        each_net(model, |net| {
            net.rates = with_values(&net.rates, |row, value| if row < 4 { 0.0 } else { value });
        });
    }),
    (&HYBRIDS, "gate of attention", |model| {
        assert_eq!(model.config.head_dim, 16);
        each_layer(model, |layer| {
            if layer.delta_net.is_none() {
                let is_gate = |row: usize| row / 16 % 2 == 1;
                layer.q =
                    with_values(&layer.q, |row, value| if is_gate(row) { 0.0 } else { value });
            }
        });
    }),
    (&HYBRIDS, "norm plus 1", |model| {
        model.weights.norm.iter_mut().for_each(|weight| *weight -= 1.0);
    }),
    (&["smollm3-f32"], "NoPE", |model| model.config.layers_without_rope.clear()),
    (&["gemma3-f32"], "local RoPE", |model| model.config.local_rope = None),
    (&["gemma3-f32"], "global RoPE", |model| {
        model.config.rope = model.config.local_rope.expect("local RoPE");
    }),
    (&["gemma3-f32"], "scale of the scores", |model| model.config.attention_scale = None),
    (&["gemma3-f32"], "embedding scale", |model| model.config.embedding_scale = 1.0),
    (&["gemma3-f32"], "GeGLU", |model| model.config.activation = Activation::Silu),
    (&["gemma3-f32"], "post norms", |model| each_layer(model, |layer| layer.post_norms = None)),
    (&["gemma3-f32"], "norm plus 1", |model| {
        model.weights.norm.iter_mut().for_each(|weight| *weight -= 1.0);
    }),
];

fn mixture(model: &mut Model) -> &mut MixtureConfig {
    model.config.mixture.as_mut().expect("experts")
}

/// `matrix` with what `value` makes of a row's index and a value.
fn with_values(matrix: &Tensor, value: impl Fn(usize, f32) -> f32) -> Tensor {
    let (rows, cols) = (matrix.rows, matrix.cols);
    let values = matrix.to_f32().into_iter().enumerate();
    let values = values.map(|(at, of)| value(at / cols, of));
    let bytes = values.flat_map(f32::to_le_bytes).collect::<Vec<_>>();
    Tensor::new(Dtype::F32, rows, cols, Arc::new(bytes), 0).expect("as many bytes")
}

fn each_net(model: &mut Model, change: fn(&mut DeltaNet)) {
    model.weights.layers.iter_mut().filter_map(|layer| layer.delta_net.as_mut()).for_each(change);
}

fn each_layer(model: &mut Model, change: fn(&mut LayerWeights)) {
    model.weights.layers.iter_mut().for_each(change);
}

/// A golden run must fail a pass that lacks the variant's feature.
#[test]
fn golden_runs_notice_what_is_left_out() {
    for (names, feature, leave_out) in LEFT_OUT {
        for name in names {
            let (golden, mut model) = load(name);
            leave_out(&mut model);
            let logits = last(Reference::new(&model).logits(&golden.prompt));
            let expected = &golden.rows[0].logits;
            let of = |token| log_softmax(&logits, token) - log_softmax(expected, token);
            let error = (0..expected.len() as u32).map(|token| of(token).abs()).fold(0.0, f64::max);
            assert!(error > 10.0 * MAX_LOGPROB_ERROR, "{name}, {feature}: off by {error:.1e}");
        }
    }
}

/// `saved_config.json` is `config.json` as transformers 5 writes it.
#[test]
fn both_forms_of_a_config_are_the_same_model() {
    let mut found = 0;
    for golden in Golden::all(&golden_folder()) {
        let Ok(saved) = std::fs::read(golden.folder.join("saved_config.json")) else { continue };
        let saved = ModelConfig::from_json(Path::new("saved_config.json"), &saved);
        let given = ModelConfig::load(&golden.folder).expect("a config");
        assert_eq!(saved.expect("a config"), given, "{}", golden.name());
        found += 1;
    }
    assert_eq!(found, 16);
}

#[test]
fn variants_load_as_what_they_are() {
    let (_, model) = load("llama3-bf16");
    assert_eq!(model.config.eos_tokens, [2, 3]);
    assert_eq!(model.config.windows, [None, None]);
    let (_, model) = load("llama3.2-f16");
    assert_eq!((model.config.head_dim, model.config.q_size()), (16, 64));
    assert_eq!(model.weights.lm_head.bytes().as_ptr(), model.weights.embed.bytes().as_ptr());
    let (_, model) = load("ministral-f32");
    assert_eq!(model.config.windows, [Some(6), None, Some(6)]);
    let (_, model) = load("qwen2-f32");
    assert_eq!(model.config.windows, [None, Some(8)]);
    let (_, model) = load("smollm3-f32");
    assert_eq!(model.config.layers_without_rope, [1]);
    assert!(model.config.tie_word_embeddings);
    let (_, model) = load("mixed");
    let layer = &model.weights.layers[0];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let tensors = [&model.weights.embed, &layer.q, &layer.mlp.dense().expect("an MLP").up];
        assert!(tensors.iter().any(|tensor| tensor.dtype == dtype), "{dtype:?}");
    }
}

/// A model is found by its folder, by its file and by its index, sharded or not.
#[test]
fn every_kind_of_path_loads() {
    let folder = golden_folder();
    for path in [
        "llama2-bf16",
        "llama2-bf16/model.safetensors",
        "sharded-bf16",
        "sharded-bf16/model.safetensors.index.json",
    ] {
        let model = Model::load(&folder.join(path)).expect(path);
        assert_eq!(model.weights.layers[1].q.dtype, Dtype::Bf16);
    }
}

fn backend(model: Model, isa: Isa, tokens: usize) -> Result<CpuForward, String> {
    let context = tokens.next_multiple_of(BLOCK_TOKENS);
    let options = CpuOptions {
        threads: 2,
        pin: false,
        isa,
        compute: Compute::Exact,
        repack: false,
        max_rows: context,
        max_segments: 1,
        kv_dtype: Dtype::F32,
        num_blocks: context / BLOCK_TOKENS,
        max_context: context,
    };
    CpuForward::new(Arc::new(model), options)
}

/// Runs the prompt as one prefill and each further token as a decode step, with `adapter` if any.
pub(crate) fn check_backend(
    golden: &Golden,
    model: Model,
    isa: Isa,
    adapter: Option<&Arc<Adapter>>,
) {
    let made = backend(model, isa, golden.prompt.len() + golden.greedy.len());
    let mut backend = made.unwrap_or_else(|e| panic!("{}: {e}", golden.name()));
    // Not in order on purpose: tokens must be located through the block table.
    let blocks: Vec<u32> = (0..backend.kv().num_blocks() as u32).rev().collect();
    let mut fed = 0;
    let error = check(golden, |tokens| {
        let mut batch = Batch::default();
        batch.push(0, fed as u32, &tokens[fed..], &blocks, true);
        adapter.into_iter().for_each(|adapter| batch.adapt(adapter));
        fed = tokens.len();
        backend.forward(&batch, &[]).to_vec()
    });
    println!("{isa} {:22} log probabilities within {error:.1e}", golden.name());
}

#[test]
fn cpu_backend_agrees_with_transformers() {
    let all = Golden::all(&golden_folder());
    assert!(!all.is_empty());
    for isa in Isa::available() {
        for golden in &all {
            check_backend(golden, Model::load(&golden.folder).expect("a model"), isa, None);
        }
    }
}

/// The runs of the folder TRAIL_GOLDEN, which `make.py --long` writes, by safetensors and by GGUF.
#[test]
fn runs_of_a_named_folder_agree_with_transformers() {
    let Some(folder) = std::env::var_os("TRAIL_GOLDEN") else {
        return println!("no TRAIL_GOLDEN: skipped");
    };
    for golden in Golden::all(Path::new(&folder)) {
        let model = Model::load(&golden.folder).expect("a model");
        let is_plain = |mixture: &MixtureConfig| mixture.dense_layers.is_empty();
        let is_hybrid = model.config.delta_net.is_some();
        if !is_hybrid && model.config.mixture.as_ref().is_some_and(is_plain) {
            let bytes = Arc::new(gguf_of(&model, unchanged).file().0);
            let file = GgufModel::from_storage(Path::new("m.gguf"), bytes).expect("a GGUF file");
            check_backend(&golden, file.model().expect("a model"), Isa::Auto, None);
        }
        check_backend(&golden, model, Isa::Auto, None);
    }
}
