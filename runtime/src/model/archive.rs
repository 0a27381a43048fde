//! Named tensors of a model, in one or several mapped files.

mod raw_tensor;

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

use trail_platform::Memory;

use super::error::LoadError;
use super::fields::Fields;
use super::files::{self, WeightFiles};
use super::gguf::names::stored_name;
use super::gguf::{GgufFile, GgufModel};
use super::header::Header;
use super::quantized::{self, Quantization};
use super::{Architecture, Dtype, Storage, Tensor};
pub(super) use raw_tensor::RawTensor;

/// Named tensors; each can be taken once by its name in Hugging Face's checkpoints.
pub struct Archive {
    /// The only file, the first part, or the index of several files.
    file: PathBuf,
    naming: Naming,
    /// How matrices that are several tensors are stored.
    quantization: Option<Quantization>,
    /// By stored name.
    tensors: HashMap<String, Entry>,
    /// Bytes of all mapped files.
    bytes: usize,
}

/// Names of the stored tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// Those of Hugging Face's checkpoints.
    HuggingFace,
    /// Those of GGUF files.
    Gguf(Architecture),
}

/// One tensor: its location, and its dtype and shape from the header.
struct Entry {
    file: PathBuf,
    /// The name of the dtype if it is not supported.
    dtype: Result<Dtype, String>,
    shape: Vec<usize>,
    storage: Storage,
    /// Offset of the tensor in `storage`, bytes.
    offset: usize,
    /// Bytes of the tensor.
    len: usize,
}

impl Archive {
    /// Maps the files and reads their headers, without reading tensor data.
    pub fn open(files: &WeightFiles) -> Result<Self, LoadError> {
        match files {
            WeightFiles::Single(file) => Self::from_storage(file, files::map(file)?),
            WeightFiles::Sharded(index) => Self::open_shards(index),
            WeightFiles::Gguf(file) => {
                let model = GgufModel::open(file)?;
                Self::from_gguf(model.config()?.architecture, model.parts())
            }
        }
    }

    /// The tensors of all `parts`, one or more.
    pub(super) fn from_gguf(
        architecture: Architecture,
        parts: &[GgufFile],
    ) -> Result<Self, LoadError> {
        let (mut tensors, mut bytes) = (HashMap::new(), 0);
        for part in parts {
            let file = part.metadata.file();
            bytes += (*part.storage).as_ref().len();
            for info in &part.tensors {
                let entry = Entry {
                    file: file.to_path_buf(),
                    dtype: Ok(info.dtype),
                    shape: info.shape.clone(),
                    storage: part.storage.clone(),
                    offset: info.offset,
                    len: info.dtype.bytes_of(info.shape.iter().product()),
                };
                if tensors.insert(info.name.clone(), entry).is_some() {
                    let (expected, found) = ("it in one part", "it in several");
                    let remedy = "download all parts again, from one revision";
                    return Err(LoadError::new(file, &info.name, expected, found, remedy));
                }
            }
        }
        let file = parts[0].metadata.file().to_path_buf();
        let naming = Naming::Gguf(architecture);
        Ok(Archive { file, naming, quantization: None, tensors, bytes })
    }

    /// Reads the header of a safetensors file whose content is `storage`.
    pub fn from_storage(file: &Path, storage: Storage) -> Result<Self, LoadError> {
        let header = Header::read(file, (*storage).as_ref())?;
        let entry = |(name, info): (String, safetensors::tensor::TensorInfo)| {
            let (begin, end) = info.data_offsets;
            let (offset, len) = (header.data_start + begin, end - begin);
            let (storage, file) = (storage.clone(), file.to_path_buf());
            let dtype = dtype(info.dtype).ok_or_else(|| format!("{:?}", info.dtype));
            (name, Entry { file, dtype, shape: info.shape, storage, offset, len })
        };
        let tensors = header.tensors.into_iter().map(entry);
        let tensors = tensors.map(|(name, entry)| (text_name(&name), entry)).collect();
        let bytes = (*storage).as_ref().len();
        let (file, naming) = (file.to_path_buf(), Naming::HuggingFace);
        Ok(Archive { file, naming, quantization: None, tensors, bytes })
    }

    fn open_shards(index: &Path) -> Result<Self, LoadError> {
        let shard_of = read_index(index)?;
        let folder = files::model_folder(index);
        let (mut tensors, mut bytes) = (HashMap::new(), 0);
        for shard in shard_of.values().collect::<BTreeSet<_>>() {
            let file = folder.join(shard);
            let mut archive = Self::from_storage(&file, files::map(&file)?)?;
            archive.tensors.retain(|name, _| shard_of.get(name) == Some(shard));
            tensors.extend(archive.tensors);
            bytes += archive.bytes;
        }
        match shard_of.iter().find(|(name, _)| !tensors.contains_key(*name)) {
            None => {
                let (file, naming) = (index.to_path_buf(), Naming::HuggingFace);
                Ok(Archive { file, naming, quantization: None, tensors, bytes })
            }
            Some((name, shard)) => {
                let expected = format!("it in {shard}");
                let remedy = "download index and shards again, from one revision";
                Err(LoadError::new(index, name, expected, "no such tensor", remedy))
            }
        }
    }

    /// True if the weights of norms are stored less 1: Gemma's and the hybrids' in Hugging Face's
    /// checkpoints.
    pub(super) fn has_norms_less_one(&self, architecture: Architecture) -> bool {
        let is_family = architecture == Architecture::Gemma3 || architecture.is_hybrid();
        is_family && self.naming == Naming::HuggingFace
    }

    /// Returns true if there is a tensor `name` that was not taken yet.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(&self.stored_name(name))
    }

    /// Name of the tensor in the files.
    fn stored_name(&self, name: &str) -> String {
        match self.naming {
            Naming::HuggingFace => name.to_string(),
            Naming::Gguf(architecture) => stored_name(architecture, name),
        }
    }

    /// The source of the shapes, for messages.
    pub(super) fn config_name(&self) -> &'static str {
        match self.naming {
            Naming::HuggingFace => "config.json",
            Naming::Gguf(_) => "the metadata",
        }
    }

    /// The same archive, whose matrices are stored by `quantization`. Refuses copies that do not
    /// fit in the available memory.
    pub fn quantized(mut self, quantization: Option<Quantization>) -> Result<Self, LoadError> {
        if let Some(quantization) = quantization {
            quantized::check_memory(&self, quantization, Memory::read())?;
        }
        self.quantization = quantization;
        Ok(self)
    }

    /// Takes the `[rows, cols]` matrix `name`: without copying its bytes, unless it is quantized in
    /// a layout that no kernel reads.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Tensor, LoadError> {
        if let Some(quantization) = self.quantization
            && let Some(tensor) = quantized::matrix(self, quantization, name, (rows, cols))?
        {
            return Ok(tensor);
        }
        self.take(name, &[rows, cols], rows, cols)
    }

    /// Takes the vector `name` of `len` elements as a matrix of one row, without copying its bytes;
    /// Hugging Face's checkpoints have it as such a matrix.
    pub(super) fn row(&mut self, name: &str, len: usize) -> Result<Tensor, LoadError> {
        match self.naming {
            Naming::HuggingFace => self.matrix(name, 1, len),
            Naming::Gguf(_) => self.take(name, &[len], 1, len),
        }
    }

    /// Takes the matrices `[rows, cols]` of `count` experts, without copying their bytes: in
    /// Hugging Face's checkpoints `PREFIX.EXPERT.PART.weight`, in GGUF files one tensor.
    pub(super) fn experts(
        &mut self,
        prefix: &str,
        part: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<Tensor>, LoadError> {
        if self.naming == Naming::HuggingFace {
            let mut matrix = |expert| {
                let name = format!("{prefix}.{expert}.{part}.weight");
                self.matrix(&name, rows, cols)
            };
            return (0..count).map(&mut matrix).collect();
        }
        let name = format!("{prefix}.{part}.weight");
        let all = self.take(&name, &[count, rows, cols], count * rows, cols)?;
        let part = |expert| all.part(expert * rows, rows).expect("rows of the tensor");
        Ok((0..count).map(part).collect())
    }

    /// True if the tensors have the names of GGUF files.
    pub(super) fn is_gguf(&self) -> bool {
        self.naming != Naming::HuggingFace
    }

    /// Takes the vector `name` of `len` elements as f32.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        Ok(self.take(name, &[len], 1, len)?.to_f32())
    }

    /// Takes the convolution `name` as f32: `[channels][taps]`.
    pub(super) fn convolution(
        &mut self,
        name: &str,
        channels: usize,
        taps: usize,
    ) -> Result<Vec<f32>, LoadError> {
        Ok(self.take(name, &[channels, 1, taps], channels, taps)?.to_f32())
    }

    /// Sorted stored names of the tensors that were not taken.
    pub fn rest(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Bytes of all mapped files.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The file that names the tensors: the only file, the first part, or the index of several.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Takes the entry of the tensor `name` of `shape`.
    fn entry(&mut self, name: &str, shape: &[usize]) -> Result<Entry, LoadError> {
        let stored = &*self.stored_name(name);
        let Some(entry) = self.tensors.remove(stored) else {
            let expected = format!("a tensor of shape {shape:?}");
            let remedy = "pass the folder if the model is sharded, else download it again";
            return Err(LoadError::new(&self.file, stored, expected, "no such tensor", remedy));
        };
        if entry.shape == shape {
            return Ok(entry);
        }
        let (expected, found) = (format!("shape {shape:?}"), format!("{:?}", entry.shape));
        let remedy = format!("check that {} belongs to this file", self.config_name());
        Err(LoadError::new(&entry.file, stored, expected, found, remedy))
    }

    /// Takes the tensor `name` of `shape` as a `[rows, cols]` matrix.
    fn take(
        &mut self,
        name: &str,
        shape: &[usize],
        rows: usize,
        cols: usize,
    ) -> Result<Tensor, LoadError> {
        let entry = self.entry(name, shape)?;
        let stored = &*self.stored_name(name);
        let refuse = |expected: String, found: String, remedy: &str| {
            LoadError::new(&entry.file, stored, expected, found, remedy)
        };
        let dtype = entry.dtype.clone().map_err(|found| {
            let remedy = "choose the unquantized checkpoint of the model";
            refuse("BF16, F16 or F32".into(), found, remedy)
        })?;
        Tensor::new(dtype, rows, cols, entry.storage.clone(), entry.offset).ok_or_else(|| {
            let expected = "bytes within the file".to_string();
            refuse(expected, format!("offset {}", entry.offset), "download the file again")
        })
    }
}

/// Name of a tensor as in a checkpoint without images, where the text model is not within another.
fn text_name(name: &str) -> String {
    name.replacen("model.language_model.", "model.", 1)
}

/// Converts a dtype to one that the backends support.
fn dtype(stored: safetensors::Dtype) -> Option<Dtype> {
    match stored {
        safetensors::Dtype::F32 => Some(Dtype::F32),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

/// Reads the file name of each tensor's shard.
fn read_index(index: &Path) -> Result<HashMap<String, String>, LoadError> {
    let fields = Fields::parse(index, &files::read_json(index)?)?;
    let remedy = "download the file again";
    let Some(map) = fields.object("weight_map", "weight_map.")? else {
        return Err(fields.refuse("weight_map", "an object of file names", remedy));
    };
    let mut shard_of = HashMap::new();
    for name in map.keys() {
        let shard = map.text(name)?.unwrap_or_default();
        // A shard is beside its index: a path elsewhere is rejected, as the index is untrusted.
        let mut parts = Path::new(shard).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(map.refuse(name, "the name of a file in the same folder", remedy));
        }
        shard_of.insert(text_name(name), shard.to_string());
    }
    Ok(shard_of)
}
