//! Loading the MLP of a layer, or the experts in its place.

use super::archive::Archive;
use super::error::LoadError;
use super::gpt_oss;
use super::mlp::stack_f32;
use super::{Architecture, GatedMlp, Mixture, MixtureConfig, Mlp, ModelConfig, Tensor};

/// Names of a mixture's weights, without `model.layers.N.`.
struct Names {
    router: &'static str,
    experts: &'static str,
    /// Gate, up and down projection of an expert.
    projections: [&'static str; 3],
}

const MIXTRAL: Names = Names {
    router: "block_sparse_moe.gate",
    experts: "block_sparse_moe.experts",
    projections: ["w1", "w3", "w2"],
};
const OTHERS: Names = Names {
    router: "mlp.gate",
    experts: "mlp.experts",
    projections: ["gate_proj", "up_proj", "down_proj"],
};

/// Loads the MLP of layer `index`.
pub(super) fn load(
    config: &ModelConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<Mlp, LoadError> {
    match config.layer_mixture(index) {
        None => load_gated(config, archive, index, "mlp", config.intermediate_size).map(Mlp::Dense),
        Some(mixture) => load_mixture(config, mixture, archive, index).map(Mlp::Mixture),
    }
}

/// Loads the gated MLP `part` of layer `index`, with `inner` inner features.
fn load_gated(
    config: &ModelConfig,
    archive: &mut Archive,
    index: usize,
    part: &str,
    inner: usize,
) -> Result<GatedMlp, LoadError> {
    let hidden = config.hidden_size;
    let mut matrix = |projection: &str, rows, cols| {
        archive.matrix(&format!("model.layers.{index}.{part}.{projection}.weight"), rows, cols)
    };
    if config.architecture.has_fused_projections() {
        let down = matrix("down_proj", hidden, inner)?;
        let name = format!("model.layers.{index}.{part}.gate_up_proj.weight");
        let [gate, up] = fused(archive, &name, [inner; 2], hidden)?;
        return Ok(GatedMlp { gate, up, down, bias: None });
    }
    Ok(GatedMlp {
        gate: matrix("gate_proj", inner, hidden)?,
        up: matrix("up_proj", inner, hidden)?,
        down: matrix("down_proj", hidden, inner)?,
        bias: None,
    })
}

/// Loads several projections of `cols` inputs that are one matrix `name`, with `rows` rows each.
pub(super) fn fused<const N: usize>(
    archive: &mut Archive,
    name: &str,
    rows: [usize; N],
    cols: usize,
) -> Result<[Tensor; N], LoadError> {
    let whole = archive.matrix(name, rows.iter().sum(), cols)?;
    let mut first = 0;
    Ok(rows.map(|rows| {
        first += rows;
        whole.part(first - rows, rows).expect("the matrix has the rows of all")
    }))
}

fn load_mixture(
    config: &ModelConfig,
    mixture: &MixtureConfig,
    archive: &mut Archive,
    index: usize,
) -> Result<Mixture, LoadError> {
    let hidden = config.hidden_size;
    let (experts, inner) = (mixture.num_experts, mixture.expert_size);
    if config.architecture == Architecture::GptOss {
        return gpt_oss::load(config, mixture, archive, index);
    }
    let names = if config.architecture == Architecture::Mixtral { MIXTRAL } else { OTHERS };
    let layer = format!("model.layers.{index}");
    let router = format!("{layer}.{}.weight", names.router);
    let mut router = vec![archive.matrix(&router, experts, hidden)?];
    let prefix = format!("{layer}.{}", names.experts);
    let [gate, up, down] = names.projections;
    let mut load = |part, rows, cols| archive.experts(&prefix, part, experts, rows, cols);
    let (gate, up) = (load(gate, inner, hidden)?, load(up, inner, hidden)?);
    let down = load(down, hidden, inner)?;
    let parts = gate.into_iter().zip(up).zip(down);
    let experts = parts.map(|((gate, up), down)| GatedMlp { gate, up, down, bias: None });
    let experts = experts.collect();
    let shared = match mixture.shared_size {
        None => None,
        Some(inner) => {
            let gate = format!("{layer}.mlp.shared_expert_gate.weight");
            router.push(archive.row(&gate, hidden)?);
            Some(load_gated(config, archive, index, "mlp.shared_expert", inner)?)
        }
    };
    let router = stack_f32(&router).expect("rows of one width, as many as there are");
    Ok(Mixture { router, router_bias: None, experts, shared })
}
