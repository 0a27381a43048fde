//! `trail-rt inspect`: the shapes, types and needs of a model.

mod args;
mod memory;
mod tensors;

use serde_json::{Value, json};
use trail_cli::{EngineArgs, Error, ModelArgs, Output, Setup, size};
use trail_platform::printable_line;
use trail_probe::TapLayers;
use trail_runtime::engine::probe_fits;
use trail_runtime::model::{ModelConfig, RopeScaling, TensorInfo};

use super::probe::layers::layer_json;
pub use args::InspectArgs;
use memory::MemoryNeed;

/// Prints the report.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &InspectArgs,
    json: bool,
) -> Result<(), Error> {
    let setup = Setup::load(&model.with_model(args.path.as_deref()))?;
    let config = &setup.model.config;
    let context = args.context.unwrap_or(config.max_context);
    if context > config.max_context {
        return Err(Error::usage(format!(
            "--context is {context}, the model's context has {} tokens: ask for at most as many",
            config.max_context
        )));
    }
    let tensors = setup.model.weights.inventory();
    let memory = MemoryNeed::of(config, &tensors, args.batch, context, engine.cpu());
    let text = match json {
        true => report_json(&setup, &tensors, &memory).to_string(),
        false => report_text(&setup, &tensors, &memory),
    };
    Output::stdout().line(text.trim_end())
}

/// Fit of the probe to the model.
enum ProbeFit {
    Absent,
    /// The layers that it reads.
    Fits(TapLayers),
    /// It belongs to another model, or its file is damaged.
    Unfit(String),
}

impl ProbeFit {
    fn of(setup: &Setup) -> ProbeFit {
        let probe = match setup.probe() {
            Ok(None) => return ProbeFit::Absent,
            Ok(Some(probe)) => probe,
            Err(error) => return ProbeFit::Unfit(error.to_string()),
        };
        match probe_fits(&probe, &setup.model.config) {
            Ok(()) => ProbeFit::Fits(probe.layers),
            Err(why) => ProbeFit::Unfit(why),
        }
    }
}

fn chat_template(setup: &Setup) -> String {
    match setup.template.fault() {
        Some(fault) => format!("cannot be used: {fault}"),
        None if !setup.template.is_present() => "no".into(),
        None if setup.template.limits().is_empty() => "yes".into(),
        None => format!("yes; it {}", setup.template.limits().join("; ")),
    }
}

fn report_text(setup: &Setup, tensors: &[TensorInfo], memory: &MemoryNeed) -> String {
    let config = &setup.model.config;
    let lines = [
        ("model", format!("{} ({})", setup.name, setup.folder.display())),
        ("architecture", architecture(config)),
        ("parameters", parameters(config, tensors)),
        ("context", context(config)),
        ("tokenizer", tokenizer(setup)),
        ("chat template", chat_template(setup)),
        ("probe", probe(setup)),
    ];
    let quantized = setup.quantization().map(|kind| ("quantization", kind.to_string()));
    let mut text = String::new();
    for (name, value) in lines.into_iter().chain(quantized).chain(memory.lines()) {
        text += &format!("{name:<15}{}\n", printable_line(&value));
    }
    format!(
        "{text}\n{}\n{}",
        tensors::type_table(&tensors::by_type(tensors)),
        tensors::group_table(&tensors::groups(tensors))
    )
}

fn architecture(config: &ModelConfig) -> String {
    let ModelConfig { architecture, num_layers, hidden_size, intermediate_size, .. } = config;
    let ModelConfig { num_heads, head_dim, num_kv_heads, .. } = config;
    let nets = match &config.delta_net {
        None => String::new(),
        Some(net) => {
            let state = size((net.state_len() * size_of::<f32>()) as u64);
            format!(", gated delta nets in {} layers with a state of {state}", net.layers.len())
        }
    };
    format!(
        "{architecture:?}: {num_layers} layers of width {hidden_size}, MLP {intermediate_size}, \
         {num_heads} heads of {head_dim}, {num_kv_heads} KV heads{nets}"
    )
}

fn parameters(config: &ModelConfig, tensors: &[TensorInfo]) -> String {
    let count: usize = tensors.iter().map(TensorInfo::parameters).sum();
    let tied = if config.tie_word_embeddings { ", output projection tied" } else { "" };
    let short = match count {
        1_000_000_000.. => format!("{:.2} B", count as f64 / 1e9),
        _ => format!("{:.1} M", count as f64 / 1e6),
    };
    format!("{short} ({count}){tied}")
}

fn context(config: &ModelConfig) -> String {
    let scaling = match config.rope.scaling {
        RopeScaling::None => String::new(),
        scaling => format!(", RoPE scaling {scaling:?}"),
    };
    let windows: Vec<usize> = config.windows.iter().flatten().copied().collect();
    let windows = match windows.first() {
        None => String::new(),
        Some(window) => format!(", sliding window of {window} in {} layers", windows.len()),
    };
    format!("{} tokens{windows}{scaling}", config.max_context)
}

fn tokenizer(setup: &Setup) -> String {
    match setup.tokenizer() {
        Ok(tokenizer) => format!("{}, {} tokens", tokenizer.kind(), tokenizer.vocab_size()),
        Err(_) => format!("none; the embedding has {} rows", setup.model.config.vocab_size),
    }
}

fn probe(setup: &Setup) -> String {
    let file = setup.probe_file().map(|file| file.display().to_string()).unwrap_or_default();
    match ProbeFit::of(setup) {
        ProbeFit::Absent => "none: served first come, first served".into(),
        ProbeFit::Fits(layer) => {
            let layers = setup.model.config.num_layers;
            format!("fits: reads layer {layer} of 0..={} ({file})", layers - 1)
        }
        ProbeFit::Unfit(why) => format!("does not fit: {why} ({file})"),
    }
}

fn report_json(setup: &Setup, tensors: &[TensorInfo], memory: &MemoryNeed) -> Value {
    let config = &setup.model.config;
    let tokenizer = setup.tokenizer().ok();
    let (fits, layer, why) = match ProbeFit::of(setup) {
        ProbeFit::Absent => (None, None, None),
        ProbeFit::Fits(layer) => (Some(true), Some(layer), None),
        ProbeFit::Unfit(why) => (Some(false), None, Some(why)),
    };
    json!({
        "model": setup.name,
        "folder": setup.folder,
        "architecture": format!("{:?}", config.architecture),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_context": config.max_context,
        "rope_theta": config.rope.theta,
        "windows": config.windows,
        "tied_output": config.tie_word_embeddings,
        "bos_token": config.bos_token,
        "eos_tokens": config.eos_tokens,
        "quantization": setup.quantization().map(|kind| kind.to_string()),
        "parameters": tensors.iter().map(TensorInfo::parameters).sum::<usize>(),
        "tokenizer": tokenizer.map(|tokenizer| {
            json!({ "kind": tokenizer.kind(), "tokens": tokenizer.vocab_size() })
        }),
        "chat_template": setup.template.is_present(),
        "chat_template_fault": setup.template.fault(),
        "chat_template_limits": setup.template.limits(),
        "probe": fits.map(|fits| {
            let layer = layer.map(layer_json);
            json!({ "file": setup.probe_file(), "fits": fits, "layer": layer, "reason": why })
        }),
        "memory": memory,
        "types": tensors::by_type(tensors),
        "tensors": tensors::groups(tensors),
    })
}
