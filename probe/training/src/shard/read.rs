//! Reading a shard, with a check of every value that is read.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};

use super::{Answer, FORMAT, Row, ShardError, Storage, VERSION};

/// Widest activation.
const MAX_HIDDEN: usize = 1 << 20;

/// A shard whose activations stay where they are, in a mapped file.
#[derive(Clone)]
pub struct Shard {
    name: String,
    storage: Storage,
    hidden: usize,
    answers: Vec<Answer>,
    rows: Vec<Row>,
    /// Byte ranges of `[rows, hidden]` and `[answers, hidden]`, by layer.
    layers: Vec<(usize, Range<usize>, Range<usize>)>,
    metadata: HashMap<String, String>,
}

impl Shard {
    /// Reads a shard from `storage`; errors name the file `name`.
    pub fn parse(storage: Storage, name: &str) -> Result<Shard, ShardError> {
        let (name, bytes) = (name.to_owned(), (*storage).as_ref());
        let header = Header::read(bytes).map_err(|why| ShardError { file: name.clone(), why })?;
        let parsed = header.contents(bytes);
        let Contents { hidden, answers, rows, layers } =
            parsed.map_err(|why| ShardError { file: name.clone(), why })?;
        let metadata = header.metadata.metadata().clone().unwrap_or_default();
        Ok(Shard { name, storage, hidden, answers, rows, layers, metadata })
    }

    /// Name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Width of an activation.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The answers.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// The positions whose activations are there, grouped by request, in ascending order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The layers, ascending.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().map(|(layer, ..)| *layer)
    }

    /// Metadata that the writer added.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Writes the activation of `row` after `layer` to `out` `[hidden]`. Panics if there is none.
    pub fn activation(&self, layer: usize, row: usize, out: &mut [f32]) {
        let (_, rows, _) = self.layer(layer);
        self.widen(rows.start, row, out);
    }

    /// Writes the mean over the prompt of `request` after `layer` to `out` `[hidden]`. Panics if
    /// there is none.
    pub fn mean(&self, layer: usize, request: usize, out: &mut [f32]) {
        let (_, _, means) = self.layer(layer);
        self.widen(means.start, request, out);
    }

    /// Position of the first value after `layer` that is not finite, as text.
    pub fn non_finite(&self, layer: usize) -> Option<String> {
        let (_, rows, means) = self.layer(layer);
        let find = |what: &str, range: &Range<usize>| {
            let (values, _) = (*self.storage).as_ref()[range.clone()].as_chunks::<2>();
            let is_finite = |value: &[u8; 2]| u16::from_le_bytes(*value) & 0x7f80 != 0x7f80;
            let at = values.iter().position(|value| !is_finite(value))?;
            Some(format!("{what}.{layer} has NaN or infinity in row {}", at / self.hidden))
        };
        find("rows", rows).or_else(|| find("means", means))
    }

    fn layer(&self, layer: usize) -> &(usize, Range<usize>, Range<usize>) {
        self.layers.iter().find(|(of, ..)| *of == layer).expect("a layer of the shard")
    }

    /// Row `row` of the matrix at byte `start` as f32.
    fn widen(&self, start: usize, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.hidden);
        let first = start + row * self.hidden * 2;
        let bytes = &(*self.storage).as_ref()[first..first + self.hidden * 2];
        for (out, &half) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *out = f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16);
        }
    }
}

/// Contents of the tensors.
struct Contents {
    hidden: usize,
    answers: Vec<Answer>,
    rows: Vec<Row>,
    layers: Vec<(usize, Range<usize>, Range<usize>)>,
}

/// The header of a safetensors file.
struct Header {
    metadata: Metadata,
    /// Offset of the tensors in the file, bytes.
    start: usize,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Header, String> {
        let damaged = |error| format!("not a whole safetensors file: {error}");
        // Checks that the tensors fill the file.
        SafeTensors::deserialize(bytes).map_err(damaged)?;
        let (len, metadata) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let text = |key: &str| metadata.metadata().as_ref().and_then(|all| all.get(key));
        for (key, expected) in [("format", FORMAT), ("version", VERSION)] {
            if text(key).is_none_or(|found| found != expected) {
                return Err(format!("metadata {key} is not {expected:?}: no shard"));
            }
        }
        Ok(Header { metadata, start: len + 8 })
    }

    fn contents(&self, bytes: &[u8]) -> Result<Contents, String> {
        let index = self.words(bytes, "request.index")?;
        let stopped = self.range("request.stopped", Dtype::U8, &[index.len()])?;
        let prompts = self.lists(bytes, "prompt", index.len())?;
        let answers = self.lists(bytes, "answer", index.len())?;
        let answers = index
            .iter()
            .zip(&bytes[stopped])
            .zip(prompts.into_iter().zip(answers))
            .map(|((&index, &stopped), (prompt, tokens))| {
                let is_whole = !prompt.is_empty() && !tokens.is_empty() && stopped <= 1;
                let stopped = stopped == 1;
                is_whole.then_some(Answer { index, prompt, tokens, stopped })
            })
            .collect::<Option<Vec<Answer>>>()
            .ok_or("a request has no prompt or no answer")?;
        let rows = self.rows(bytes, &answers)?;
        let layers = self.layers()?;
        let hidden = match layers.first() {
            Some((_, hidden)) if (1..=MAX_HIDDEN).contains(hidden) => *hidden,
            Some((_, hidden)) => return Err(format!("activations are {hidden} wide")),
            None => return Err("there are no activations".into()),
        };
        let range = |kind: &str, layer: usize, count: usize| {
            self.range(&format!("{kind}.{layer}"), Dtype::BF16, &[count, hidden])
        };
        let layers = layers
            .iter()
            .map(|&(layer, _)| {
                let means = range("means", layer, answers.len())?;
                Ok((layer, range("rows", layer, rows.len())?, means))
            })
            .collect::<Result<_, String>>()?;
        Ok(Contents { hidden, answers, rows, layers })
    }

    /// The rows, checked against the answers that they belong to.
    fn rows(&self, bytes: &[u8], answers: &[Answer]) -> Result<Vec<Row>, String> {
        let request = self.words(bytes, "row.request")?;
        let generated = self.words(bytes, "row.generated")?;
        if request.len() != generated.len() {
            return Err("row.request and row.generated differ in length".into());
        }
        let rows = request.iter().zip(&generated);
        let rows: Vec<Row> =
            rows.map(|(&request, &generated)| Row { request, generated }).collect();
        let is_valid = |row: &Row| {
            let answer = answers.get(row.request as usize);
            answer
                .is_some_and(|answer| (1..answer.tokens.len()).contains(&(row.generated as usize)))
        };
        let key = |row: &Row| (row.request, row.generated);
        let ascend = rows.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]));
        match rows.iter().all(is_valid) && ascend {
            true => Ok(rows),
            false => Err("a row lies outside of its answer, or rows do not ascend".into()),
        }
    }

    /// The layers that have rows, ascending, and the width of their activations.
    fn layers(&self) -> Result<Vec<(usize, usize)>, String> {
        let mut layers = Vec::new();
        for (name, info) in self.metadata.tensors() {
            let Some(layer) = name.strip_prefix("rows.") else { continue };
            let layer = layer.parse().map_err(|_| format!("tensor {name:?}: no layer"))?;
            layers.push((layer, info.shape.get(1).copied().unwrap_or(0)));
        }
        layers.sort_unstable();
        Ok(layers)
    }

    /// The lists `NAME.ids`, cut at `NAME.ends`.
    fn lists(&self, bytes: &[u8], name: &str, count: usize) -> Result<Vec<Vec<u32>>, String> {
        let ids = self.words(bytes, &format!("{name}.ids"))?;
        let ends = self.words(bytes, &format!("{name}.ends"))?;
        let mut first = 0;
        let cut = |&end: &u32| {
            let list = ids.get(first..end as usize)?.to_vec();
            first = end as usize;
            Some(list)
        };
        let lists: Option<Vec<_>> = ends.iter().map(cut).collect();
        let is_whole =
            ends.len() == count && ends.last().map_or(0, |&end| end as usize) == ids.len();
        lists.filter(|_| is_whole).ok_or_else(|| format!("{name}.ends does not cut {name}.ids"))
    }

    /// A vector of u32.
    fn words(&self, bytes: &[u8], name: &str) -> Result<Vec<u32>, String> {
        let count = self.info(name)?.shape.iter().product();
        let range = self.range(name, Dtype::U32, &[count])?;
        Ok(bytes[range].as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect())
    }

    /// Bytes of the tensor `name` of this type and shape.
    fn range(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Range<usize>, String> {
        let info = self.info(name)?;
        if info.dtype != dtype || info.shape != shape {
            let found = format!("{:?} {:?}", info.dtype, info.shape);
            return Err(format!("{name} is {found}, not {dtype:?} {shape:?}"));
        }
        let (first, last) = info.data_offsets;
        Ok(self.start + first..self.start + last)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, String> {
        self.metadata.info(name).ok_or_else(|| format!("there is no tensor {name}"))
    }
}
