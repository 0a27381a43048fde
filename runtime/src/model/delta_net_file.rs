//! Reading the gated delta nets of `config.json`, and loading their weights.

use serde_json::Value;

use super::archive::Archive;
use super::config::Architecture;
use super::error::LoadError;
use super::fields::Fields;
use super::mlp::stack_f32;
use super::size_limits::{MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS};
use super::{DeltaNet, DeltaNetConfig, ModelConfig, Tensor};

/// Default of `full_attention_interval`, as in transformers.
const DEFAULT_INTERVAL: usize = 4;
/// Longest convolution, tokens.
const MAX_TAPS: usize = 16;

/// Reads the gated delta nets of a model of `num_layers` layers; `None` for a family without.
pub(super) fn read(
    fields: &Fields,
    architecture: Architecture,
    num_layers: usize,
) -> Result<Option<DeltaNetConfig>, LoadError> {
    if !architecture.is_hybrid() {
        return Ok(None);
    }
    // Defaults of transformers.
    let size = |key: &str, max: usize, default: usize| {
        fields.optional_size(key, max).map(|size| size.unwrap_or(default))
    };
    let key_heads = size("linear_num_key_heads", MAX_HEADS, 16)?;
    let value_heads = size("linear_num_value_heads", MAX_HEADS, 32)?;
    if !value_heads.is_multiple_of(key_heads) {
        let expected = format!("a multiple of linear_num_key_heads ({key_heads})");
        let remedy = "check that this is the model's config.json";
        return Err(fields.refuse("linear_num_value_heads", &expected, remedy));
    }
    Ok(Some(DeltaNetConfig {
        layers: layers(fields, num_layers)?,
        key_heads,
        value_heads,
        key_dim: size("linear_key_head_dim", MAX_HEAD_DIM, 128)?,
        value_dim: size("linear_value_head_dim", MAX_HEAD_DIM, 128)?,
        taps: size("linear_conv_kernel_dim", MAX_TAPS, 4)?,
    }))
}

/// Reads the layers with gated delta nets: those of `layer_types`, else all but the last of every
/// `full_attention_interval`. One layer at least has attention.
fn layers(fields: &Fields, num_layers: usize) -> Result<Vec<usize>, LoadError> {
    let (key, remedy) = ("layer_types", "check that this is the model's config.json");
    let has_net: Option<Vec<bool>> = match fields.get(key) {
        None => {
            let interval = fields.optional_size("full_attention_interval", MAX_LAYERS)?;
            let interval = interval.unwrap_or(DEFAULT_INTERVAL);
            Some((1..=num_layers).map(|layer| !layer.is_multiple_of(interval)).collect())
        }
        Some(types) => {
            let of_type = |name: &Value| match name.as_str() {
                Some("linear_attention") => Some(true),
                Some("full_attention") => Some(false),
                _ => None,
            };
            let types = types.as_array().filter(|types| types.len() == num_layers);
            types.and_then(|types| types.iter().map(of_type).collect())
        }
    };
    let has_net = has_net.filter(|has_net| has_net.contains(&false)).ok_or_else(|| {
        let expected = format!(
            "{num_layers} times \"linear_attention\" or \"full_attention\", one of the latter at \
             least"
        );
        fields.refuse(key, &expected, remedy)
    })?;
    Ok((0..num_layers).filter(|&layer| has_net[layer]).collect())
}

/// The q, k, v and o projections of a layer, and its gated delta net.
pub(super) type Projections = ([Tensor; 4], DeltaNet);

/// Loads the gated delta net of layer `index`, whose shapes are `net`.
pub(super) fn load(
    config: &ModelConfig,
    net: &DeltaNetConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<Projections, LoadError> {
    let hidden = config.hidden_size;
    let name = |part: &str| format!("model.layers.{index}.linear_attn.{part}");
    let (keys, values, heads) = (net.key_size(), net.value_size(), net.value_heads);
    let part = |tensor: &Tensor, first, rows| tensor.part(first, rows).expect("rows of the tensor");
    let ([q, k, v, gate], rates) = match config.architecture {
        Architecture::Qwen3Next => {
            let (wide, narrow) = (keys + values, heads);
            let all = archive.matrix(&name("in_proj_qkvz.weight"), 2 * wide, hidden)?;
            let rates = archive.matrix(&name("in_proj_ba.weight"), 2 * narrow, hidden)?;
            let widths = [net.key_dim, net.key_dim, net.group() * net.value_dim];
            let [q, k, v, gate] = ungrouped(&all, [widths[0], widths[1], widths[2], widths[2]]);
            let [update, decay] = ungrouped(&rates, [net.group(); 2]);
            ([q, k, v, gate], [update, decay])
        }
        _ => {
            let qkv = archive.matrix(&name("in_proj_qkv.weight"), net.channels(), hidden)?;
            let gate = archive.matrix(&name("in_proj_z.weight"), values, hidden)?;
            let rates = [
                archive.matrix(&name("in_proj_b.weight"), heads, hidden)?,
                archive.matrix(&name("in_proj_a.weight"), heads, hidden)?,
            ];
            let (q, k) = (part(&qkv, 0, keys), part(&qkv, keys, keys));
            ([q, k, part(&qkv, 2 * keys, values), gate], rates)
        }
    };
    let conv = archive.convolution(&name("conv1d.weight"), net.channels(), net.taps)?;
    let by_tap = |tap| conv.iter().skip(tap).step_by(net.taps).copied();
    let decay = archive.vector(&name("A_log"), heads)?;
    let net = DeltaNet {
        gate,
        rates: stack_f32(&rates).expect("rows of one width"),
        conv: (0..net.taps).flat_map(by_tap).collect(),
        decay: decay.into_iter().map(|log| -log.exp()).collect(),
        decay_bias: archive.vector(&name("dt_bias"), heads)?,
        norm: archive.vector(&name("norm.weight"), net.value_dim)?,
    };
    let o = archive.matrix(&name("out_proj.weight"), hidden, values)?;
    Ok(([q, k, v, o], net))
}

/// The matrices whose rows are in turn in `tensor`: some rows of each, as many as `widths`, for
/// each key head (Qwen3-Next). Copies.
fn ungrouped<const N: usize>(tensor: &Tensor, widths: [usize; N]) -> [Tensor; N] {
    let group: usize = widths.iter().sum();
    let mut first = 0;
    widths.map(|width| {
        let groups = (first..tensor.rows).step_by(group);
        first += width;
        tensor.with_rows(groups.flat_map(|first| first..first + width))
    })
}
