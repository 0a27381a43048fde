//! Activation functions of the MLP's gate.

/// Activation function of the MLP's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)` (SwiGLU).
    Silu,
    /// GELU in its tanh form (GeGLU).
    GeluTanh,
}
