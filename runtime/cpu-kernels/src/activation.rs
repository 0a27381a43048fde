//! Activation functions of the MLP's gate.

/// Activation function of the MLP's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)` (SwiGLU).
    Silu,
    /// GELU in its tanh form (GeGLU).
    GeluTanh,
    /// `x * sigmoid(1.702 x) * (up + 1)` with x at most 7 and `up` from -7 to 7 (gpt-oss; ggml:
    /// `swiglu_oai`).
    SwigluOai,
}
