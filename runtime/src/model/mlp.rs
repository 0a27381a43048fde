//! Weights of a layer's MLP: one gated MLP, or a mixture of such experts.

use std::sync::Arc;

use super::{Dtype, Tensor};

/// The MLP of a layer.
#[derive(Clone, Debug)]
pub enum Mlp {
    /// One for all rows.
    Dense(GatedMlp),
    /// Experts; a router chooses some for each row.
    Mixture(Mixture),
}

/// `Down(activation(Gate x) * Up x)`.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    /// Gate projection: `[intermediate, hidden]`.
    pub gate: Tensor,
    /// Up projection: `[intermediate, hidden]`.
    pub up: Tensor,
    /// Down projection: `[hidden, intermediate]`.
    pub down: Tensor,
    /// Biases, if the family has them.
    pub bias: Option<MlpBias>,
}

/// Biases of a gated MLP (gpt-oss).
#[derive(Clone, Debug)]
pub struct MlpBias {
    /// `[intermediate]`
    pub gate: Vec<f32>,
    /// `[intermediate]`
    pub up: Vec<f32>,
    /// `[hidden]`
    pub down: Vec<f32>,
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Router, in f32: `[num_experts, hidden]`, and behind these rows the gate of the shared
    /// expert, if any: one product computes both.
    pub router: Tensor,
    /// Bias of the scores, if the family has it: one for each row of `router`.
    pub router_bias: Option<Vec<f32>>,
    /// `[num_experts]`; each matrix is a view of the file, which is read when the expert is used.
    pub experts: Vec<GatedMlp>,
    /// The expert that computes every row, times the sigmoid of its gate.
    pub shared: Option<GatedMlp>,
}

impl GatedMlp {
    /// The matrices, in the order of the forward pass.
    pub fn matrices(&self) -> [&Tensor; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// The same, to be changed.
    pub fn matrices_mut(&mut self) -> [&mut Tensor; 3] {
        [&mut self.gate, &mut self.up, &mut self.down]
    }
}

impl Mlp {
    /// The MLP of all rows; `None` for a mixture.
    pub fn dense(&self) -> Option<&GatedMlp> {
        match self {
            Mlp::Dense(dense) => Some(dense),
            Mlp::Mixture(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn dense_mut(&mut self) -> Option<&mut GatedMlp> {
        match self {
            Mlp::Dense(dense) => Some(dense),
            Mlp::Mixture(_) => None,
        }
    }

    /// The mixture; `None` for one MLP.
    pub fn mixture(&self) -> Option<&Mixture> {
        match self {
            Mlp::Dense(_) => None,
            Mlp::Mixture(mixture) => Some(mixture),
        }
    }

    /// The gated MLPs: the only one, or the experts, then the shared one.
    pub fn gated(&self) -> impl Iterator<Item = &GatedMlp> {
        let (all, last) = match self {
            Mlp::Dense(dense) => (&[][..], Some(dense)),
            Mlp::Mixture(mixture) => (&mixture.experts[..], mixture.shared.as_ref()),
        };
        all.iter().chain(last)
    }

    /// The same, to be changed.
    pub fn gated_mut(&mut self) -> impl Iterator<Item = &mut GatedMlp> {
        let (all, last) = match self {
            Mlp::Dense(dense) => (&mut [][..], Some(dense)),
            Mlp::Mixture(mixture) => (&mut mixture.experts[..], mixture.shared.as_mut()),
        };
        all.iter_mut().chain(last)
    }
}

/// The `matrices`, of one width, one below another in f32.
pub(super) fn stack_f32(matrices: &[Tensor]) -> Option<Tensor> {
    let values: Vec<f32> = matrices.iter().flat_map(Tensor::to_f32).collect();
    let (rows, cols) = (matrices.iter().map(|matrix| matrix.rows).sum(), matrices.first()?.cols);
    let bytes = bytemuck::cast_slice::<f32, u8>(&values).to_vec();
    Tensor::new(Dtype::F32, rows, cols, Arc::new(bytes), 0)
}
