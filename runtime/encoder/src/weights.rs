//! The tensors of an encoder as f32.

use half::{bf16, f16};
use ndarray::{Array1, Array2};
use safetensors::{Dtype, SafeTensors};
use trail_platform::quote::quote;

use crate::config::{Config, Family};

/// A dense map.
pub(crate) struct Linear {
    /// `[outputs, inputs]`.
    pub(crate) weight: Array2<f32>,
    pub(crate) bias: Array1<f32>,
}

/// Weight and bias of a layer norm.
pub(crate) struct Norm {
    pub(crate) weight: Array1<f32>,
    pub(crate) bias: Array1<f32>,
}

/// One layer.
pub(crate) struct Block {
    /// Query, key, value.
    pub(crate) qkv: [Linear; 3],
    pub(crate) attention: Linear,
    pub(crate) attention_norm: Norm,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) mlp_norm: Norm,
}

/// All tensors.
pub(crate) struct Weights {
    /// `[vocab, width]`.
    pub(crate) words: Array2<f32>,
    /// `[positions, width]`.
    pub(crate) positions: Array2<f32>,
    /// Of the first token type; none in DistilBERT.
    pub(crate) token_type: Option<Array1<f32>>,
    pub(crate) norm: Norm,
    pub(crate) blocks: Vec<Block>,
}

impl Weights {
    /// Parses `bytes`, a safetensors file of an encoder of `config`; the error says what is missing
    /// or has another shape.
    pub(crate) fn parse(bytes: &[u8], config: &Config) -> Result<Weights, String> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| {
            // The message quotes names of the file, which may have line breaks and any length.
            quote(&error.to_string())
        })?;
        let is_in = |prefix: &&str| {
            tensors.tensor(&format!("{prefix}embeddings.word_embeddings.weight")).is_ok()
        };
        // With a task's head on top, the encoder's tensors have its name before theirs.
        let prefix = ["", "bert.", "distilbert."].into_iter().find(is_in).unwrap_or_default();
        let of = Reader { tensors, prefix };
        let Config { vocab, width, positions, .. } = *config;
        let token_type = || -> Result<Array1<f32>, String> {
            let name = "embeddings.token_type_embeddings.weight";
            let types = of.rows(name)?;
            Ok(of.matrix(name, [types, width])?.row(0).to_owned())
        };
        Ok(Weights {
            words: of.matrix("embeddings.word_embeddings.weight", [vocab, width])?,
            positions: of.matrix("embeddings.position_embeddings.weight", [positions, width])?,
            token_type: (config.family == Family::Bert).then(token_type).transpose()?,
            norm: of.norm("embeddings.LayerNorm", width)?,
            blocks: (0..config.layers).map(|at| of.block(config, at)).collect::<Result<_, _>>()?,
        })
    }
}

struct Reader<'a> {
    tensors: SafeTensors<'a>,
    prefix: &'static str,
}

impl Reader<'_> {
    fn block(&self, config: &Config, at: usize) -> Result<Block, String> {
        let Config { width, mlp, .. } = *config;
        let (layer, names) = match config.family {
            Family::Bert => (
                format!("encoder.layer.{at}"),
                [
                    "attention.self.query",
                    "attention.self.key",
                    "attention.self.value",
                    "attention.output.dense",
                    "attention.output.LayerNorm",
                    "intermediate.dense",
                    "output.dense",
                    "output.LayerNorm",
                ],
            ),
            Family::DistilBert => (
                format!("transformer.layer.{at}"),
                [
                    "attention.q_lin",
                    "attention.k_lin",
                    "attention.v_lin",
                    "attention.out_lin",
                    "sa_layer_norm",
                    "ffn.lin1",
                    "ffn.lin2",
                    "output_layer_norm",
                ],
            ),
        };
        let [query, key, value, attention, attention_norm, up, down, mlp_norm] =
            names.map(|name| format!("{layer}.{name}"));
        let square = |name: &str| self.linear(name, width, width);
        Ok(Block {
            qkv: [square(&query)?, square(&key)?, square(&value)?],
            attention: square(&attention)?,
            attention_norm: self.norm(&attention_norm, width)?,
            up: self.linear(&up, mlp, width)?,
            down: self.linear(&down, width, mlp)?,
            mlp_norm: self.norm(&mlp_norm, width)?,
        })
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear, String> {
        Ok(Linear {
            weight: self.matrix(&format!("{name}.weight"), [outputs, inputs])?,
            bias: self.vector(&format!("{name}.bias"), outputs)?,
        })
    }

    /// A layer norm; the first checkpoints name its parts gamma and beta.
    fn norm(&self, name: &str, width: usize) -> Result<Norm, String> {
        let part = |new: &str, old: &str| {
            let old = format!("{name}.{old}");
            match self.tensors.tensor(&format!("{}{old}", self.prefix)) {
                Ok(_) => self.vector(&old, width),
                Err(_) => self.vector(&format!("{name}.{new}"), width),
            }
        };
        Ok(Norm { weight: part("weight", "gamma")?, bias: part("bias", "beta")? })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Array1<f32>, String> {
        self.values(name, &[len]).map(Array1::from)
    }

    fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Array2<f32>, String> {
        let values = self.values(name, &shape)?;
        Ok(Array2::from_shape_vec(shape, values).expect("as many values as the shape says"))
    }

    /// First dimension of tensor `name`, at least 1.
    fn rows(&self, name: &str) -> Result<usize, String> {
        let view = self.tensors.tensor(&format!("{}{name}", self.prefix));
        let first =
            view.map_err(|_| format!("there is no tensor {name}"))?.shape().first().copied();
        first.filter(|&rows| rows > 0).ok_or_else(|| format!("{name} has no rows"))
    }

    /// The finite values of tensor `name`, which has `shape`.
    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let name = format!("{}{name}", self.prefix);
        let view = self.tensors.tensor(&name).map_err(|_| format!("there is no tensor {name}"))?;
        if view.shape() != shape {
            let found = view.shape();
            return Err(format!("{name} has shape {found:?}, config.json says {shape:?}"));
        }
        let data = view.data();
        let pairs = || data.as_chunks::<2>().0.iter().copied();
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect(),
            Dtype::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
            Dtype::BF16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
            other => return Err(format!("{name} is {other:?}: give F32, F16 or BF16")),
        };
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(format!("{name} has a value that is not finite")),
        }
    }
}
