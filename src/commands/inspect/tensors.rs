//! A model's tensors, grouped.

use std::collections::BTreeMap;

use serde::Serialize;
use trail_runtime::model::TensorInfo;
use trail_cli::{Table, size};

/// Tensors of one type.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TypeSum {
    #[serde(rename = "type")]
    dtype: String,
    tensors: usize,
    parameters: usize,
    bytes: usize,
}

/// Tensors of one name, type and shape: in most models one of each layer.
#[derive(Clone, Debug, Serialize)]
pub struct TensorGroup {
    name: &'static str,
    #[serde(rename = "type")]
    dtype: String,
    shape: Vec<usize>,
    tensors: usize,
    bytes: usize,
}

/// Sums by type, the largest first.
pub fn by_type(tensors: &[TensorInfo]) -> Vec<TypeSum> {
    let mut sums: BTreeMap<String, TypeSum> = BTreeMap::new();
    for tensor in tensors {
        let dtype = type_name(tensor);
        let sum = sums.entry(dtype.clone()).or_insert(TypeSum { dtype, ..TypeSum::default() });
        sum.tensors += 1;
        sum.parameters += tensor.parameters();
        sum.bytes += tensor.bytes;
    }
    let mut sums: Vec<TypeSum> = sums.into_values().collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.bytes));
    sums
}

/// Groups of equal tensors, in the order of the forward pass.
pub fn groups(tensors: &[TensorInfo]) -> Vec<TensorGroup> {
    let mut groups: Vec<TensorGroup> = Vec::new();
    for tensor in tensors {
        let dtype = type_name(tensor);
        let is_equal = |group: &&mut TensorGroup| {
            group.name == tensor.name && group.dtype == dtype && group.shape == tensor.shape
        };
        match groups.iter_mut().find(is_equal) {
            Some(group) => {
                group.tensors += 1;
                group.bytes += tensor.bytes;
            }
            None => {
                // Types can differ between layers: groups of one name follow each other.
                let last = groups.iter().rposition(|group| group.name == tensor.name);
                let group = TensorGroup {
                    name: tensor.name,
                    dtype,
                    shape: tensor.shape.clone(),
                    tensors: 1,
                    bytes: tensor.bytes,
                };
                groups.insert(last.map_or(groups.len(), |last| last + 1), group);
            }
        }
    }
    groups
}

/// The type's own name, in capitals as file formats write it.
fn type_name(tensor: &TensorInfo) -> String {
    tensor.dtype.to_string()
}

/// A table of the sums.
pub fn type_table(sums: &[TypeSum]) -> Table {
    let mut table = Table::default().group("", &["type", "tensors", "parameters", "size"]);
    for sum in sums {
        let counts = [sum.tensors.to_string(), sum.parameters.to_string()];
        table.row([sum.dtype.clone()].into_iter().chain(counts).chain([size(sum.bytes as u64)]));
    }
    table
}

/// A table of the groups.
pub fn group_table(groups: &[TensorGroup]) -> Table {
    let mut table = Table::default().group("", &["tensor", "type", "shape", "tensors", "size"]);
    for group in groups {
        let shape: Vec<String> = group.shape.iter().map(usize::to_string).collect();
        table.row([
            group.name.into(),
            group.dtype.clone(),
            format!("[{}]", shape.join(", ")),
            group.tensors.to_string(),
            size(group.bytes as u64),
        ]);
    }
    table
}
