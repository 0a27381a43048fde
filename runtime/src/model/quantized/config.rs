//! `quantization_config` of a config.json: how a checkpoint stores its quantized matrices.

use std::fmt;
use std::path::Path;

use serde_json::Value;

use super::super::error::LoadError;
use super::super::fields::Fields;
use super::super::files::{self, WeightFiles};

/// Largest group and side of a block: the largest width of a model.
const MAX_GROUP: usize = 1 << 20;
/// The kinds that can be loaded, for messages.
const SUPPORTED: &str = "GPTQ, AWQ or compressed-tensors with 4 bits, or FP8 (e4m3)";
const REMEDY: &str = "choose another checkpoint of the model, or one in GGUF";

/// How a checkpoint stores its quantized matrices. A `group` is the number of consecutive inputs
/// with one scale; `None` for all of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// 4 bits by AutoGPTQ or GPTQModel: `qweight`, `qzeros`, `scales`, `g_idx`.
    Gptq {
        /// Inputs of a group.
        group: Option<usize>,
        /// Zero points are stored less 1: the format `gptq`, unlike `gptq_v2`.
        zeros_less_one: bool,
        /// Groups are of columns that are not side by side (`desc_act`): what is copied is f16.
        act_order: bool,
    },
    /// 4 bits by AutoAWQ: `qweight`, `qzeros`, `scales`, in the order of its GEMM.
    Awq {
        /// Inputs of a group.
        group: Option<usize>,
    },
    /// 4 bits of compressed-tensors: `weight_packed`, `weight_scale`, `weight_zero_point`.
    Packed {
        /// Inputs of a group.
        group: Option<usize>,
        /// The zero point of all weights is 8, and not stored.
        symmetric: bool,
    },
    /// 8-bit floats (e4m3): `weight` with a scale for all of it, for each row, or for each block.
    Fp8 {
        /// Name of the scale, by which weights are multiplied.
        scale: &'static str,
        /// Rows and columns of a block with one scale, if scales are by block.
        block: Option<[usize; 2]>,
    },
}

impl Quantization {
    /// Reads the config.json of the model at `path`, or the `quantize_config.json` that older GPTQ
    /// checkpoints have; `None` if neither describes a quantized checkpoint, and for GGUF.
    pub fn load(path: &Path) -> Result<Option<Quantization>, LoadError> {
        if let WeightFiles::Gguf(_) = files::find_weights(path)? {
            return Ok(None);
        }
        let folder = files::model_folder(path);
        let file = folder.join("config.json");
        if let Some(bytes) = files::read_json_if_present(&file)?
            && let Some(found) = Quantization::of_config(&Fields::parse(&file, &bytes)?)?
        {
            return Ok(Some(found));
        }
        let file = folder.join("quantize_config.json");
        let Some(bytes) = files::read_json_if_present(&file)? else { return Ok(None) };
        gptq(&Fields::parse(&file, &bytes)?).map(Some)
    }

    /// Reads the value of `quantization_config` in a config.json; `None` without that key.
    pub(in crate::model) fn of_config(fields: &Fields) -> Result<Option<Quantization>, LoadError> {
        let key = "quantization_config";
        let Some(settings) = fields.object(key, "quantization_config.")? else { return Ok(None) };
        let found = match settings.text("quant_method")? {
            Some("gptq") => gptq(&settings),
            Some("awq") => awq(&settings),
            Some("compressed-tensors") => compressed_tensors(&settings),
            Some("fp8") => fp8(&settings),
            // gpt-oss's experts, which are loaded as a type of their file.
            Some("mxfp4") => return Ok(None),
            Some("fbgemm_fp8") => Ok(Quantization::Fp8 { scale: "weight_scale", block: None }),
            _ => Err(settings.refuse("quant_method", SUPPORTED, REMEDY)),
        };
        found.map(Some)
    }

    /// Name of the tensor with the codes, behind that of its module.
    pub(super) fn weight(self) -> &'static str {
        match self {
            Quantization::Gptq { .. } | Quantization::Awq { .. } => "qweight",
            Quantization::Packed { .. } => "weight_packed",
            Quantization::Fp8 { .. } => "weight",
        }
    }

    /// Names of tensors of a module that the products here do not need: scales of activations in 8
    /// bits, which are f32 or rounded by their own.
    pub(super) fn unread(self) -> &'static [&'static str] {
        match self {
            Quantization::Gptq { .. } | Quantization::Awq { .. } => &[],
            Quantization::Packed { .. } => &["weight_shape", "input_scale"],
            Quantization::Fp8 { .. } => &["input_scale", "activation_scale", "input_scale_ub"],
        }
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, group) = match *self {
            Quantization::Gptq { group: Some(group), act_order: true, .. } => {
                return write!(f, "GPTQ, 4 bits, groups of {group}, act-order, widened to f16");
            }
            Quantization::Gptq { group, zeros_less_one: true, .. } => ("GPTQ", group),
            Quantization::Gptq { group, zeros_less_one: false, .. } => ("GPTQ (v2)", group),
            Quantization::Awq { group } => ("AWQ", group),
            Quantization::Packed { group, .. } => ("compressed-tensors", group),
            Quantization::Fp8 { block: None, .. } => return f.write_str("FP8, widened to bf16"),
            Quantization::Fp8 { block: Some([rows, cols]), .. } => {
                return write!(f, "FP8 with scales by {rows}x{cols}, widened to bf16");
            }
        };
        match group {
            Some(group) => write!(f, "{name}, 4 bits, groups of {group}, repacked"),
            None => write!(f, "{name}, 4 bits, a scale a row, repacked"),
        }
    }
}

fn gptq(settings: &Fields) -> Result<Quantization, LoadError> {
    four_bits(settings, "bits")?;
    let dynamic = settings.get("dynamic").and_then(Value::as_object);
    if dynamic.is_some_and(|modules| !modules.is_empty()) {
        return Err(settings.refuse("dynamic", "one setting for all modules", REMEDY));
    }
    // `checkpoint_format` before transformers 5.
    let key = if settings.get("format").is_some() { "format" } else { "checkpoint_format" };
    let zeros_less_one = match settings.text(key)? {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(_) => return Err(settings.refuse(key, "gptq or gptq_v2", REMEDY)),
    };
    let act_order = settings.flag("desc_act")?;
    Ok(Quantization::Gptq { group: group(settings, "group_size")?, zeros_less_one, act_order })
}

fn awq(settings: &Fields) -> Result<Quantization, LoadError> {
    // The older names are those of the file quant_config.json.
    let either = |new, old| if settings.get(new).is_some() { new } else { old };
    four_bits(settings, either("bits", "w_bit"))?;
    let key = either("format", "version");
    if settings.text(key)?.is_some_and(|layout| !layout.eq_ignore_ascii_case("gemm")) {
        return Err(settings.refuse(key, "gemm", REMEDY));
    }
    Ok(Quantization::Awq { group: group(settings, either("group_size", "q_group_size"))? })
}

fn fp8(settings: &Fields) -> Result<Quantization, LoadError> {
    if settings.text("fmt")?.is_some_and(|format| format != "e4m3") {
        return Err(settings.refuse("fmt", "e4m3", REMEDY));
    }
    let block = block(settings, "weight_block_size")?;
    Ok(Quantization::Fp8 { scale: "weight_scale_inv", block })
}

fn compressed_tensors(settings: &Fields) -> Result<Quantization, LoadError> {
    for key in ["transform_config", "sparsity_config"] {
        let is_empty = |value: &Value| value.as_object().is_some_and(|of| of.is_empty());
        if settings.get(key).is_some_and(|value| !is_empty(value)) {
            return Err(settings.refuse(key, "no such key", REMEDY));
        }
    }
    let groups = settings.object("config_groups", "config_groups.")?;
    let one = "one group of modules";
    let Some(groups) = groups else {
        return Err(settings.refuse("config_groups", one, REMEDY));
    };
    let mut names = groups.keys();
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(settings.refuse("config_groups", one, REMEDY));
    };
    let weights = match groups.object(name, "config_groups.")? {
        Some(group) => group.object("weights", "config_groups.weights.")?,
        None => None,
    };
    let Some(weights) = weights else {
        return Err(groups.refuse(name, "an object with weights", REMEDY));
    };
    match (settings.text("format")?, weights.text("type")?) {
        (Some("pack-quantized"), Some("int")) => {
            four_bits(&weights, "num_bits")?;
            let symmetric = match weights.get("symmetric") {
                None => true,
                Some(_) => weights.flag("symmetric")?,
            };
            Ok(Quantization::Packed { group: group(&weights, "group_size")?, symmetric })
        }
        (Some("float-quantized" | "naive-quantized"), Some("float")) => {
            if weights.get("num_bits").and_then(Value::as_u64) != Some(8) {
                return Err(weights.refuse("num_bits", "8", REMEDY));
            }
            let block = block(&weights, "block_structure")?;
            Ok(Quantization::Fp8 { scale: "weight_scale", block })
        }
        _ => {
            let expected = "pack-quantized integers, or float-quantized floats";
            Err(settings.refuse("format", expected, REMEDY))
        }
    }
}

fn four_bits(settings: &Fields, key: &str) -> Result<(), LoadError> {
    match settings.get(key).and_then(Value::as_u64) {
        Some(4) => Ok(()),
        _ => Err(settings.refuse(key, "4", REMEDY)),
    }
}

/// Reads the size of a group: -1 or no value is all of a row.
fn group(settings: &Fields, key: &str) -> Result<Option<usize>, LoadError> {
    let size = settings.get(key).map(|size| (size.as_i64(), size.as_u64()));
    match size {
        None | Some((Some(-1), _)) => Ok(None),
        Some((_, Some(size))) if size.is_multiple_of(32) && size > 0 => {
            settings.size(key, MAX_GROUP).map(Some)
        }
        _ => Err(settings.refuse(key, "a multiple of 32, or -1", REMEDY)),
    }
}

/// Reads rows and columns of a block.
fn block(settings: &Fields, key: &str) -> Result<Option<[usize; 2]>, LoadError> {
    let Some(value) = settings.get(key) else { return Ok(None) };
    let side = |side: &Value| {
        let side = side.as_u64().and_then(|side| usize::try_from(side).ok())?;
        (1..=MAX_GROUP).contains(&side).then_some(side)
    };
    match value.as_array().map(|sides| sides.iter().map(side).collect::<Vec<_>>()).as_deref() {
        Some(&[Some(rows), Some(cols)]) => Ok(Some([rows, cols])),
        _ => Err(settings.refuse(key, "two sizes, such as [128, 128]", REMEDY)),
    }
}
