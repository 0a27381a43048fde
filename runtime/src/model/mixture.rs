//! Shapes and constants of a mixture of experts.

/// The mixture of experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureConfig {
    /// Number of experts of a layer.
    pub num_experts: usize,
    /// Number of experts that compute a row: those with the highest scores, of equal ones those
    /// with the lowest indices.
    pub experts_per_token: usize,
    /// Width of an expert's inner layer.
    pub expert_size: usize,
    /// Width of the inner layer of the expert that computes every row, if any.
    pub shared_size: Option<usize>,
    /// True if the weights of a row's experts are the softmax of their scores alone, with sum 1;
    /// false if of the scores of all experts (`norm_topk_prob` of transformers).
    pub normalized: bool,
    /// Layers with one MLP of `intermediate_size` in place of experts, first to last.
    pub dense_layers: Vec<usize>,
}

impl MixtureConfig {
    /// Rows of a router: see [`Mixture::router`](super::Mixture::router).
    pub fn router_rows(&self) -> usize {
        self.num_experts + usize::from(self.shared_size.is_some())
    }
}
