//! Repacking: quantized weights copied into the order in which products read them.
//!
//! Rows lie interleaved on huge pages, instead of one after another in the mapped file. The bits of
//! a product do not depend on the layout.

use std::sync::{Arc, Mutex, PoisonError};

use trail_platform::Memory;

use crate::model::{GatedMlp, LayerWeights, Model, Storage, Tensor, Weights};

use super::Pool;
use super::kv::FEWER_BLOCKS;
use super::narrow::{NarrowKernel, NarrowKernels};
use trail_cpu_kernels::Aligned;
use trail_cpu_kernels::{INTERLEAVED_ROWS, interleave};

/// Returns the weights of `model` with those interleaved that `kernels` multiply in 8 bits. A
/// matrix whose rows, or a head's, are no whole number of groups stays as it is. Refuses copies
/// that do not fit beside `others`, the bytes that the backend will use for the rest.
pub(super) fn repack(
    model: &Model,
    kernels: &NarrowKernels,
    pool: &mut Pool,
    others: u128,
) -> Result<Weights, String> {
    let mut weights = model.weights.clone();
    let head_dim = model.config.head_dim;
    let is_repacked = |tensor: &Tensor, rows: usize| {
        let is_q8 = matches!(kernels.of(tensor), Some(NarrowKernel::Q8(_)));
        is_q8 && rows.is_multiple_of(INTERLEAVED_ROWS)
    };
    let mut regions: Vec<Vec<&mut Tensor>> = regions(&mut weights, head_dim)
        .map(|(matrices, rows)| {
            let rows = |tensor: &Tensor| rows.unwrap_or(tensor.rows);
            matrices.into_iter().filter(|tensor| is_repacked(tensor, rows(tensor))).collect()
        })
        .collect();
    let bytes = regions.iter().flatten().map(|tensor| tensor.bytes().len()).sum();
    check_memory(bytes, others, Memory::read())?;
    let mut copy = Aligned::reserved(bytes.div_ceil(size_of::<f32>()))?;
    let mut rest = bytemuck::cast_slice_mut(&mut copy);
    for matrices in &regions {
        let bytes = matrices.iter().map(|tensor| tensor.bytes().len()).sum();
        let (out, next) = std::mem::take(&mut rest).split_at_mut(bytes);
        interleave_groups(matrices, out, pool);
        rest = next;
    }
    let (storage, mut offset): (Storage, _) = (Arc::new(copy), 0);
    for tensor in regions.iter_mut().flatten() {
        **tensor = tensor.interleaved(storage.clone(), offset);
        offset += tensor.bytes().len();
    }
    Ok(weights)
}

/// The matrices that activations are multiplied with, by the parallel region whose items split
/// their rows one after another, and the number of rows of an item where it is that of a head.
///
/// A thread that repacks the items of its NUMA node so has the memory near that its products read.
fn regions(
    weights: &mut Weights,
    head_dim: usize,
) -> impl Iterator<Item = (Vec<&mut Tensor>, Option<usize>)> {
    let layers = weights.layers.iter_mut().flat_map(move |layer| {
        let LayerWeights { q, k, v, o, mlp, delta_net, .. } = layer;
        let inputs = match delta_net {
            None => (vec![q, k, v], Some(head_dim)),
            Some(net) => (vec![q, k, v, &mut net.gate], None),
        };
        let of_mlp = mlp.gated_mut().flat_map(GatedMlp::matrices_mut);
        let others = [o].into_iter().chain(of_mlp).map(|tensor| (vec![tensor], None));
        [inputs].into_iter().chain(others)
    });
    layers.chain([(vec![&mut weights.lm_head], None)])
}

/// Interleaves `matrices` into `out`, one after another, which is as long.
fn interleave_groups(matrices: &[&mut Tensor], out: &mut [u8], pool: &mut Pool) {
    // A lock for each group, as all workers share the list; none is waited for.
    let mut groups = Vec::new();
    let mut rest = out;
    for tensor in matrices {
        let (out, next) = std::mem::take(&mut rest).split_at_mut(tensor.bytes().len());
        let group_bytes = INTERLEAVED_ROWS * tensor.row_len();
        let pairs = tensor.bytes().chunks_exact(group_bytes).zip(out.chunks_exact_mut(group_bytes));
        groups.extend(pairs.map(|(rows, out)| Mutex::new((tensor.dtype, rows, out))));
        rest = next;
    }
    let nothing = || false;
    pool.for_each(groups.len(), nothing, |_, group| {
        let mut group = groups[group].lock().unwrap_or_else(PoisonError::into_inner);
        let (dtype, rows, out) = &mut *group;
        interleave(*dtype, rows, out);
    });
}

/// Refuses copies of `bytes` bytes that would take more than the memory that `others` bytes leave.
fn check_memory(bytes: usize, others: u128, memory: Option<Memory>) -> Result<(), String> {
    match memory {
        Some(memory) if bytes as u128 + others > u128::from(memory.available_bytes) => {
            Err(format!(
                "--repack copies {} MiB of weights beside {} MiB of KV and activations, {} MiB of \
             memory are available: leave it out, or {FEWER_BLOCKS}",
                bytes >> 20,
                others >> 20,
                memory.available_bytes >> 20
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_beyond_the_available_memory_are_refused() {
        let memory = Some(Memory { total_bytes: 8 << 20, available_bytes: 3 << 20 });
        assert_eq!(check_memory(2 << 20, 1 << 20, memory), Ok(()));
        assert_eq!(check_memory(usize::MAX, 0, None), Ok(()));
        let refusal = check_memory(2 << 20, 2 << 20, memory).unwrap_err();
        assert!(refusal.starts_with("--repack copies 2 MiB of weights beside 2 MiB"), "{refusal}");
    }
}
