//! Tensors as they are stored, for matrices that are copied at load.

use std::path::PathBuf;

use super::super::{Dtype, Storage};
use super::{Archive, Entry};

/// A tensor as it is stored, whatever its dtype.
pub(in crate::model) struct RawTensor {
    pub(in crate::model) file: PathBuf,
    pub(in crate::model) name: String,
    /// In the spelling of safetensors.
    pub(in crate::model) dtype: String,
    pub(in crate::model) shape: Vec<usize>,
    storage: Storage,
    offset: usize,
    len: usize,
}

impl RawTensor {
    /// The bytes, little-endian.
    pub(in crate::model) fn bytes(&self) -> &[u8] {
        &(*self.storage).as_ref()[self.offset..self.offset + self.len]
    }

    /// The words of 32 bits.
    pub(in crate::model) fn words(&self) -> impl Iterator<Item = u32> {
        self.bytes().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
    }

    /// The type, if it is a float type that the backends have.
    pub(in crate::model) fn float(&self) -> Option<Dtype> {
        let known = [Dtype::F32, Dtype::F16, Dtype::Bf16];
        known.into_iter().find(|dtype| dtype.to_string() == self.dtype)
    }

    /// The values of a float type that the backends have; none of another type.
    pub(in crate::model) fn floats(&self) -> Vec<f32> {
        let Some(dtype) = self.float() else { return Vec::new() };
        let mut values = vec![0.0; self.len / dtype.block_bytes()];
        dtype.widen(self.bytes(), &mut values);
        values
    }
}

impl Entry {
    /// Returns true if the type is `dtype`, one that the backends do not have.
    fn is_stored(&self, dtype: &str) -> bool {
        self.dtype.as_ref().is_err_and(|name| name == dtype)
    }
}

impl Archive {
    /// Takes the tensor `name` as it is stored. Its bytes count as mapped no more: the copy does.
    pub(in crate::model) fn take_raw(&mut self, name: &str) -> Option<RawTensor> {
        let Entry { file, dtype, shape, storage, offset, len } = self.tensors.remove(name)?;
        self.bytes -= len;
        let dtype = dtype.map_or_else(|name| name, |dtype| dtype.to_string());
        Some(RawTensor { file, name: name.to_owned(), dtype, shape, storage, offset, len })
    }

    /// Returns true if the tensor `name` is there and of the stored type `dtype`.
    pub(in crate::model) fn stores(&self, name: &str, dtype: &str) -> bool {
        self.tensors.get(name).is_some_and(|entry| entry.is_stored(dtype))
    }

    /// Bytes of all tensors of the stored type `dtype`, one that the backends do not have.
    pub(in crate::model) fn bytes_of(&self, dtype: &str) -> u64 {
        let tensors = self.tensors.values().filter(|entry| entry.is_stored(dtype));
        tensors.map(|entry| entry.len as u64).sum()
    }

    /// Bytes of all tensors whose names contain `part`.
    pub(in crate::model) fn bytes_in(&self, part: &str) -> u64 {
        let tensors = self.tensors.iter().filter(|(name, _)| name.contains(part));
        tensors.map(|(_, entry)| entry.len as u64).sum()
    }

    /// Leaves out the tensors of `module` with the names `parts`.
    pub(in crate::model) fn forget(&mut self, module: &str, parts: &[&str]) {
        for part in parts {
            self.tensors.remove(&format!("{module}.{part}"));
        }
    }

    /// Returns true if the tensor with the stored name `name` is a bias of zeros, as AutoGPTQ
    /// writes for modules without one.
    pub(in crate::model) fn is_zero_bias(&self, name: &str) -> bool {
        let is_bias = self.quantization.is_some() && name.ends_with(".bias");
        self.tensors.get(name).filter(|_| is_bias).is_some_and(|entry| {
            let bytes = &(*entry.storage).as_ref()[entry.offset..entry.offset + entry.len];
            bytes.iter().all(|byte| *byte == 0)
        })
    }
}
