//! Writing the two formats of this crate.

use std::collections::HashMap;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::read::VERSION;
use crate::bins::Bins;

/// A file of `format` with the metadata common to both formats, `metadata`, and `f32` `tensors`
/// (name, shape, values).
pub(crate) fn serialize<const N: usize>(
    format: &str,
    bins: Bins,
    metadata: [(&str, String); N],
    tensors: &[(&str, &[usize], &[f32])],
) -> Vec<u8> {
    let common = [
        ("format", format.to_string()),
        ("version", VERSION.to_string()),
        ("max_tokens", bins.max_tokens().to_string()),
        ("bins", bins.count().to_string()),
    ];
    let metadata: HashMap<String, String> =
        common.into_iter().chain(metadata).map(|(key, value)| (key.into(), value)).collect();
    let little_endian = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, _, values)| little_endian(values)).collect();
    let views = tensors.iter().zip(&data).map(|((name, shape, _), data)| {
        let view = TensorView::new(Dtype::F32, shape.to_vec(), data);
        (*name, view.expect("a tensor has as many values as its shape says"))
    });
    safetensors::serialize(views, Some(metadata)).expect("distinct names and a small header")
}
