//! Loading a model: the configuration, then each weight by its Hugging Face name.

use std::path::Path;

use super::archive::Archive;
use super::error::LoadError;
use super::files::{self, WeightFiles};
use super::gguf::GgufModel;
use super::quantized::Quantization;
use super::{DeltaNet, LayerWeights, Model, ModelConfig, PostNorms, QkNorm, QkvBias, Tensor};
use super::{Weights, delta_net_file, load_mlp};

/// Prefixes of tensors that change the result: those of layers, and factors of another RoPE.
const LAYERS: [&str; 3] = ["model.layers.", "blk.", "rope_factors"];

impl Model {
    /// Loads the model at `path`: a `.gguf` file, a `.safetensors` file with `config.json` beside
    /// it, or a folder (one `model.safetensors`, shards with their index, or one GGUF file).
    /// Weights are mapped, not copied, but for those of quantized checkpoints ([`Quantization`]).
    pub fn load(path: &Path) -> Result<Model, LoadError> {
        let weight_files = files::find_weights(path)?;
        if let WeightFiles::Gguf(file) = &weight_files {
            return GgufModel::open(file)?.model();
        }
        let config = ModelConfig::load(&files::model_folder(path))?;
        let archive = Archive::open(&weight_files)?.quantized(Quantization::load(path)?)?;
        Self::from_archive(config, archive)
    }

    /// Builds the model of `config` from the tensors of `archive`.
    pub fn from_archive(config: ModelConfig, mut archive: Archive) -> Result<Model, LoadError> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embed = archive.matrix("model.embed_tokens.weight", vocab, hidden)?;
        let layers = (0..config.num_layers).map(|index| load_layer(&config, &mut archive, index));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = load_norm(&config, &mut archive, "model.norm.weight", hidden)?;
        // Some tied checkpoints contain a copy of the table; the config's flag decides.
        let lm_head = match config.tie_word_embeddings {
            true => embed.clone(),
            false => archive.matrix("lm_head.weight", vocab, hidden)?,
        };
        refuse_rest(&archive)?;
        let mapped_bytes = archive.bytes();
        Ok(Model { config, weights: Weights { embed, layers, norm, lm_head, mapped_bytes } })
    }
}

fn load_layer(
    config: &ModelConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<LayerWeights, LoadError> {
    let name = |part: &str| format!("model.layers.{index}.{part}.weight");
    let hidden = config.hidden_size;
    let ([q, k, v, o], delta_net) = load_projections(config, archive, index)?;
    let has_sinks = config.architecture.has_sinks();
    let bias = |part: &str| format!("model.layers.{index}.{part}.bias");
    let sinks = format!("model.layers.{index}.self_attn.sinks");
    // Gemma's `post_attention_layernorm` is one of its post norms, in other families the norm
    // before the MLP.
    let mlp_norm = match config.architecture.has_post_norms() {
        true => "pre_feedforward_layernorm",
        false => "post_attention_layernorm",
    };
    Ok(LayerWeights {
        attention_norm: load_norm(config, archive, &name("input_layernorm"), hidden)?,
        q,
        k,
        v,
        o,
        delta_net,
        mlp_norm: load_norm(config, archive, &name(mlp_norm), hidden)?,
        mlp: load_mlp::load(config, archive, index)?,
        qkv_bias: load_qkv_bias(config, archive, index)?,
        o_bias: optional_vector(has_sinks, archive, &bias("self_attn.o_proj"), hidden)?,
        sinks: optional_vector(has_sinks, archive, &sinks, config.num_heads)?,
        qk_norm: load_qk_norm(config, archive, index)?,
        post_norms: load_post_norms(config, archive, index)?,
    })
}

/// The q, k, v and o projections of layer `index`, and its gated delta net, if it has one.
fn load_projections(
    config: &ModelConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<([Tensor; 4], Option<DeltaNet>), LoadError> {
    if let Some(net) = config.layer_delta_net(index) {
        let (projections, net) = delta_net_file::load(config, net, archive, index)?;
        return Ok((projections, Some(net)));
    }
    let [q, k, v, o] = config.projections(index);
    if config.architecture.has_fused_projections() {
        let name = |part: &str| format!("model.layers.{index}.self_attn.{part}_proj.weight");
        let rows = [q.0, k.0, v.0];
        let [q, k, v] = load_mlp::fused(archive, &name("qkv"), rows, config.hidden_size)?;
        return Ok(([q, k, v, archive.matrix(&name("o"), o.0, o.1)?], None));
    }
    let mut matrix = |part: &str, (rows, cols)| {
        archive.matrix(&format!("model.layers.{index}.self_attn.{part}_proj.weight"), rows, cols)
    };
    Ok(([matrix("q", q)?, matrix("k", k)?, matrix("v", v)?, matrix("o", o)?], None))
}

fn optional_vector(
    is_there: bool,
    archive: &mut Archive,
    name: &str,
    len: usize,
) -> Result<Option<Vec<f32>>, LoadError> {
    is_there.then(|| archive.vector(name, len)).transpose()
}

fn load_qkv_bias(
    config: &ModelConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<Option<QkvBias>, LoadError> {
    if !config.architecture.has_qkv_bias() {
        return Ok(None);
    }
    let mut bias = |part: &str, len: usize| {
        archive.vector(&format!("model.layers.{index}.self_attn.{part}_proj.bias"), len)
    };
    Ok(Some(QkvBias {
        q: bias("q", config.q_size())?,
        k: bias("k", config.kv_size())?,
        v: bias("v", config.kv_size())?,
    }))
}

fn load_qk_norm(
    config: &ModelConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<Option<QkNorm>, LoadError> {
    if !config.architecture.has_qk_norm() || config.layer_delta_net(index).is_some() {
        return Ok(None);
    }
    let mut norm = |part: &str, len: usize| {
        let name = format!("model.layers.{index}.self_attn.{part}_norm.weight");
        load_norm(config, archive, &name, len)
    };
    let (q, k) = config.qk_norm_sizes();
    Ok(Some(QkNorm { q: norm("q", q)?, k: norm("k", k)? }))
}

fn load_post_norms(
    config: &ModelConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<Option<PostNorms>, LoadError> {
    if !config.architecture.has_post_norms() {
        return Ok(None);
    }
    let mut norm = |part: &str| {
        let name = format!("model.layers.{index}.post_{part}_layernorm.weight");
        load_norm(config, archive, &name, config.hidden_size)
    };
    Ok(Some(PostNorms { attention: norm("attention")?, mlp: norm("feedforward")? }))
}

/// Loads the weight of an RMSNorm.
fn load_norm(
    config: &ModelConfig,
    archive: &mut Archive,
    name: &str,
    len: usize,
) -> Result<Vec<f32>, LoadError> {
    let mut weight = archive.vector(name, len)?;
    if archive.has_norms_less_one(config.architecture) {
        weight.iter_mut().for_each(|weight| *weight += 1.0);
    }
    Ok(weight)
}

/// Rejects layer weights that the forward pass would not use: a bias, a query norm or an extra
/// layer belongs to another architecture.
fn refuse_rest(archive: &Archive) -> Result<(), LoadError> {
    // Old checkpoints store the rotary frequencies, which follow from the configuration.
    let is_unused = |name: &&str| {
        let is_layer = LAYERS.iter().any(|prefix| name.starts_with(prefix));
        is_layer && !name.ends_with(".rotary_emb.inv_freq") && !archive.is_zero_bias(name)
    };
    match archive.rest().into_iter().find(is_unused) {
        None => Ok(()),
        Some(name) => Err(LoadError::new(
            archive.file(),
            name,
            "only the weights that the configuration describes",
            "this tensor as well",
            format!(
                "check that {} belongs to this file and that the family is supported",
                archive.config_name()
            ),
        )),
    }
}
