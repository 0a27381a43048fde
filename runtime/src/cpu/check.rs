//! Checks of a model before the first pass: the kernels index by its configuration.

use crate::model::{
    DeltaNetConfig, Dtype, GatedMlp, LayerWeights, Mlp, Model, ModelConfig, Tensor,
};

/// Checks what the kernels assume of a configuration.
pub(super) fn check_config(config: &ModelConfig) -> Result<(), String> {
    let ModelConfig { num_heads, num_kv_heads, head_dim, num_layers, windows, .. } = config;
    if *num_layers == 0 || *num_kv_heads == 0 || !num_heads.is_multiple_of(*num_kv_heads) {
        return Err(format!("{num_heads} heads, {num_kv_heads} KV heads, {num_layers} layers"));
    }
    if *head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(format!("head_dim is {head_dim}: it must be even"));
    }
    let rotary_dim = config.rotary_dim();
    if rotary_dim == 0 || rotary_dim > *head_dim || !rotary_dim.is_multiple_of(2) {
        return Err(format!("{rotary_dim} of {head_dim} dimensions of a head are rotated"));
    }
    if config.delta_net.is_some() != config.architecture.is_hybrid() {
        return Err(format!("{:?}, gated delta nets: {:?}", config.architecture, config.delta_net));
    }
    if let Some(net) = &config.delta_net {
        let DeltaNetConfig { key_heads, value_heads, key_dim, value_dim, taps, layers } = net;
        let sizes = [*key_heads, *value_heads, *key_dim, *value_dim, *taps];
        let in_order = layers.is_sorted_by(|a, b| a < b);
        let is_sound = !sizes.contains(&0) && value_heads.is_multiple_of(*key_heads) && in_order;
        if !is_sound || layers.iter().any(|layer| layer >= num_layers) || config.kv_layers() == 0 {
            return Err(format!("{net:?} in {num_layers} layers"));
        }
    }
    if windows.len() != *num_layers || windows.contains(&Some(0)) {
        return Err(format!("windows {windows:?} for {num_layers} layers"));
    }
    Ok(())
}

/// Checks the shape of every tensor against the config, by which the kernels index.
pub(super) fn check_weights(model: &Model) -> Result<(), String> {
    let config = &model.config;
    let weights = &model.weights;
    let hidden = config.hidden_size;
    let shape = |name: &str, tensor: &Tensor, rows: usize, cols: usize| {
        let given = (tensor.rows, tensor.cols);
        let message = || format!("{name} is {given:?}, the config says {:?}", (rows, cols));
        if given == (rows, cols) { Ok(()) } else { Err(message()) }
    };
    shape("embedding", &weights.embed, config.vocab_size, hidden)?;
    shape("lm_head", &weights.lm_head, config.vocab_size, hidden)?;
    if weights.layers.len() != config.num_layers || weights.norm.len() != hidden {
        return Err(format!("{} blocks for {} layers", weights.layers.len(), config.num_layers));
    }
    for (index, layer) in weights.layers.iter().enumerate() {
        let projections = [("q", &layer.q), ("k", &layer.k), ("v", &layer.v), ("o", &layer.o)];
        let shapes = config.projections(index);
        for ((name, tensor), (rows, cols)) in projections.into_iter().zip(shapes) {
            shape(&format!("{name} of layer {index}"), tensor, rows, cols)?;
        }
        check_delta_net(config, index, layer)?;
        for (mlp, inner) in check_mlp(config, index, &layer.mlp)? {
            let matrices = [
                ("gate", &mlp.gate, inner, hidden),
                ("up", &mlp.up, inner, hidden),
                ("down", &mlp.down, hidden, inner),
            ];
            for (name, tensor, rows, cols) in matrices {
                shape(&format!("{name} of layer {index}"), tensor, rows, cols)?;
            }
            let biases = mlp.bias.as_ref().map(|b| [b.gate.len(), b.up.len(), b.down.len()]);
            if biases.is_some_and(|lens| lens != [inner, inner, hidden]) {
                return Err(format!("the biases of an expert of layer {index} have {biases:?}"));
            }
        }
        if layer.attention_norm.len() != hidden || layer.mlp_norm.len() != hidden {
            return Err(format!("a norm of layer {index} is not of width {hidden}"));
        }
        check_family(config, index, layer).map_err(|what| format!("layer {index}: {what}"))?;
    }
    Ok(())
}

/// Checks that layer `index` has a gated delta net, of the config's shapes, if the config has one.
fn check_delta_net(config: &ModelConfig, index: usize, layer: &LayerWeights) -> Result<(), String> {
    let (net, weights) = match (config.layer_delta_net(index), &layer.delta_net) {
        (None, None) => return Ok(()),
        (Some(net), Some(weights)) => (net, weights),
        (net, _) => return Err(format!("layer {index}, a gated delta net: {}", net.is_some())),
    };
    let (hidden, heads) = (config.hidden_size, net.value_heads);
    let matrices = [&weights.gate, &weights.rates].map(|matrix| (matrix.rows, matrix.cols));
    let vectors = [&weights.conv, &weights.decay, &weights.decay_bias, &weights.norm];
    let lens = vectors.map(|vector| vector.len());
    let expected = [net.taps * net.channels(), heads, heads, net.value_dim];
    let is_f32 = weights.rates.dtype == Dtype::F32;
    if matrices == [(net.value_size(), hidden), (2 * heads, hidden)] && lens == expected && is_f32 {
        return Ok(());
    }
    Err(format!("the gated delta net of layer {index} has {matrices:?} and {lens:?} weights"))
}

/// Checks that the MLP of layer `index` is of the config's kind. Returns its gated MLPs, each with
/// the width of its inner layer.
fn check_mlp<'a>(
    config: &ModelConfig,
    index: usize,
    mlp: &'a Mlp,
) -> Result<Vec<(&'a GatedMlp, usize)>, String> {
    let (mixture, layer) = match (mlp, config.layer_mixture(index)) {
        (Mlp::Dense(dense), None) => return Ok(vec![(dense, config.intermediate_size)]),
        (Mlp::Mixture(layer), Some(mixture)) => (mixture, layer),
        (_, mixture) => {
            return Err(format!("layer {index}, a mixture by its config: {}", mixture.is_some()));
        }
    };
    let router = (layer.router.dtype, layer.router.rows, layer.router.cols);
    if router != (Dtype::F32, mixture.router_rows(), config.hidden_size) {
        return Err(format!("the router of layer {index} is {router:?}"));
    }
    let bias = layer.router_bias.as_ref().map_or(mixture.router_rows(), Vec::len);
    if bias != mixture.router_rows() {
        return Err(format!("the bias of the router of layer {index} has {bias} values"));
    }
    let counts = (layer.experts.len(), layer.shared.is_some());
    let fits = (1..=mixture.num_experts).contains(&mixture.experts_per_token);
    if counts != (mixture.num_experts, mixture.shared_size.is_some()) || !fits {
        return Err(format!("layer {index}: experts and a shared one {counts:?}, {mixture:?}"));
    }
    let experts = layer.experts.iter().map(|mlp| (mlp, mixture.expert_size));
    Ok(experts.chain(layer.shared.iter().zip(mixture.shared_size)).collect())
}

/// Checks that `layer` has the vectors of its family, of the config's lengths.
fn check_family(config: &ModelConfig, index: usize, layer: &LayerWeights) -> Result<(), String> {
    let family = config.architecture;
    let (q, kv) = (config.q_size(), config.kv_size());
    let hidden = config.hidden_size;
    let (q_norm, k_norm) = config.qk_norm_sizes();
    let terms = [(&layer.o_bias, hidden), (&layer.sinks, config.num_heads)];
    if terms.iter().any(|(term, _)| term.is_some() != family.has_sinks()) {
        return Err(format!("{family:?}, a bias of o or attention sinks"));
    }
    let terms = terms.iter().filter_map(|(term, len)| Some((term.as_ref()?, *len)));
    let LayerWeights { qkv_bias, qk_norm, post_norms, .. } = layer;
    let bias = qkv_bias.as_ref().map(|bias| [(&bias.q, q), (&bias.k, kv), (&bias.v, kv)]);
    let qk_norm = qk_norm.as_ref().map(|norm| [(&norm.q, q_norm), (&norm.k, k_norm)]);
    // A family without post norms has no buffer for them.
    if post_norms.is_some() != family.has_post_norms() {
        return Err(format!("{family:?}, post norms: {}", post_norms.is_some()));
    }
    let post_norms =
        post_norms.as_ref().map(|norms| [(&norms.attention, hidden), (&norms.mlp, hidden)]);
    let has_qk_norm = family.has_qk_norm() && config.layer_delta_net(index).is_none();
    if bias.is_none() && family.has_qkv_bias() || qk_norm.is_none() && has_qk_norm {
        return Err(format!("{family:?} without biases or norms of q and k"));
    }
    let vectors =
        (bias.iter().flatten()).chain(qk_norm.iter().flatten()).chain(post_norms.iter().flatten());
    for (vector, len) in vectors.copied().chain(terms) {
        if vector.len() != len {
            return Err(format!("a bias or norm has {} values, not {len}", vector.len()));
        }
    }
    Ok(())
}
