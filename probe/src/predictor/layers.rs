//! A stack of dense layers with ReLU between them, in f64.

/// A dense layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Outputs.
    pub outputs: usize,
    /// `[inputs, outputs]`: the weights of one input are contiguous.
    weight: Vec<f32>,
    /// `[outputs]`.
    pub bias: Vec<f32>,
}

impl Layer {
    /// A layer of `weight` `[outputs, inputs]` and `bias` `[outputs]`. Panics on other lengths.
    pub fn new(weight: &[f32], bias: &[f32]) -> Layer {
        let outputs = bias.len();
        assert!(outputs > 0 && weight.len().is_multiple_of(outputs), "no layer of {outputs} rows");
        let weight = transposed(weight, weight.len() / outputs);
        Layer { outputs, weight, bias: bias.to_vec() }
    }

    /// Inputs.
    pub fn inputs(&self) -> usize {
        self.weight.len() / self.outputs
    }

    /// The weights `[outputs, inputs]`.
    pub fn rows(&self) -> Vec<f32> {
        transposed(&self.weight, self.outputs)
    }

    /// Indices of the inputs whose weights are not all 0, ascending.
    pub(super) fn weighted_inputs(&self) -> Vec<usize> {
        let weights = self.weight.chunks_exact(self.outputs).enumerate();
        weights.filter(|(_, of)| of.iter().any(|&weight| weight != 0.0)).map(|(at, _)| at).collect()
    }

    /// The layer of the inputs at `kept` alone.
    pub(super) fn narrowed(&self, kept: &[usize]) -> Layer {
        let weights = kept.iter().flat_map(|&at| &self.weight[at * self.outputs..][..self.outputs]);
        Layer { weight: weights.copied().collect(), bias: self.bias.clone(), ..*self }
    }

    /// The layer of `inputs` inputs, whose weights are those of this one at `kept`, and 0.
    pub(super) fn widened(&self, kept: &[usize], inputs: usize) -> Layer {
        let mut weight = vec![0.0; inputs * self.outputs];
        for (&at, of) in kept.iter().zip(self.weight.chunks_exact(self.outputs)) {
            weight[at * self.outputs..][..self.outputs].copy_from_slice(of);
        }
        Layer { weight, bias: self.bias.clone(), ..*self }
    }

    /// Outputs for the inputs that are not zero, each with its index. In f64, which finite f32
    /// weights cannot overflow: every input gets a finite answer.
    fn apply(&self, inputs: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
        let mut out: Vec<f64> = self.bias.iter().copied().map(f64::from).collect();
        for (at, value) in inputs {
            let weights = &self.weight[at * self.outputs..][..self.outputs];
            for (out, &weight) in out.iter_mut().zip(weights) {
                *out += value * f64::from(weight);
            }
        }
        out
    }
}

/// Outputs of the last of `layers` for `inputs`, the values that are not zero with their indices.
pub(super) fn forward(layers: &[Layer], inputs: &[(u32, f64)]) -> Vec<f64> {
    let (first, rest) = layers.split_first().expect("at least one layer");
    let sparse = inputs.iter().map(|&(at, value)| (at as usize, value));
    rest.iter().fold(first.apply(sparse), |hidden, layer| {
        let relu = hidden.iter().map(|&x| x.clamp(0.0, f64::from(f32::MAX)));
        layer.apply(relu.enumerate().filter(|(_, x)| *x > 0.0))
    })
}

/// Transposes a row-major matrix of `columns` columns.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| matrix[column..].iter().step_by(columns).copied()).collect()
}
