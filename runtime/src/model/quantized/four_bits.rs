//! A matrix of 4-bit codes in the layouts of GPTQ, AWQ and compressed-tensors.

use super::super::archive::{Archive, RawTensor};
use super::super::error::LoadError;
use super::config::Quantization;
use super::{refuse, take};

/// Inputs of a quantized block: of ggml's types with one scale.
pub(super) const BLOCK: usize = 32;
/// Codes of a stored word.
const WORD: usize = 8;
/// Place of each of 8 rows in a word of AutoAWQ's GEMM.
const AWQ_PLACE: [usize; WORD] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Zero point of symmetric codes.
pub(super) const SYMMETRIC: u8 = 8;

/// Codes with their groups, zero points and scales: the weight of row r and column c is
/// `scale(r, g) * (code(r, c) - zero(r, g))`, where g is the group of c.
pub(super) struct FourBits {
    /// Outputs.
    pub(super) rows: usize,
    /// Inputs, whole blocks of 32.
    pub(super) cols: usize,
    layout: Layout,
    codes: RawTensor,
    /// `[groups, rows]`, each from 0 to 15.
    pub(super) zeros: Vec<u8>,
    /// `[groups, rows]`.
    pub(super) scales: Vec<f32>,
    /// The group of each column.
    pub(super) groups: Vec<u32>,
}

/// Places of the codes in words, whose lowest bits are the first code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `[cols / 8, rows]`: 8 columns a word.
    Gptq,
    /// `[cols, rows / 8]`: 8 rows a word, in [`AWQ_PLACE`].
    Awq,
    /// `[rows, cols / 8]`: 8 columns a word.
    Packed,
}

impl FourBits {
    /// Takes the tensors of `module`, a `[rows, cols]` matrix, from `archive`. Refuses shapes and
    /// types that do not fit, and columns whose group is not there.
    pub(super) fn take(
        archive: &mut Archive,
        module: &str,
        (rows, cols): (usize, usize),
        quantization: Quantization,
    ) -> Result<FourBits, LoadError> {
        let (layout, group, names) = match quantization {
            Quantization::Gptq { group, .. } => {
                (Layout::Gptq, group, ["scales", "qzeros", "g_idx"])
            }
            Quantization::Awq { group } => (Layout::Awq, group, ["scales", "qzeros", "g_idx"]),
            Quantization::Packed { group, .. } => {
                let names = ["weight_scale", "weight_zero_point", "weight_g_idx"];
                (Layout::Packed, group, names)
            }
            Quantization::Fp8 { .. } => unreachable!("no codes of 4 bits"),
        };
        let [scale, zero, order] = names.map(|name| format!("{module}.{name}"));
        let codes = format!("{module}.{}", quantization.weight());
        let shape = match layout {
            Layout::Gptq => [cols.div_ceil(WORD), rows],
            Layout::Awq => [cols, rows.div_ceil(WORD)],
            Layout::Packed => [rows, cols.div_ceil(WORD)],
        };
        let codes = take(archive, &codes, &["I32"], &shape)?;
        let group = group.unwrap_or(cols);
        if !cols.is_multiple_of(BLOCK) || !cols.is_multiple_of(group) {
            return Err(refuse(&codes, format!("inputs in groups of {group} and blocks of 32")));
        }
        let count = cols / group;
        let scales = scales(archive, &scale, (rows, count), layout)?;
        let zeros = match quantization {
            Quantization::Packed { symmetric: true, .. } => vec![SYMMETRIC; count * rows],
            _ => zeros(archive, &zero, (rows, count), quantization)?,
        };
        let groups = match archive.contains(&order) {
            true => order_of_groups(archive, &order, cols, count)?,
            false => (0..cols).map(|col| (col / group) as u32).collect(),
        };
        Ok(FourBits { rows, cols, layout, codes, zeros, scales, groups })
    }

    /// The codes of row `row` in columns `32 * block..32 * block + 32`, each from 0 to 15.
    pub(super) fn codes(&self, row: usize, block: usize) -> [u8; BLOCK] {
        let words = self.codes.bytes();
        let nibble = |word: usize, place: usize| {
            let byte = words[4 * word + place / 2];
            if place.is_multiple_of(2) { byte & 15 } else { byte >> 4 }
        };
        std::array::from_fn(|index| {
            let col = BLOCK * block + index;
            match self.layout {
                Layout::Gptq => nibble(col / WORD * self.rows + row, col % WORD),
                Layout::Awq => {
                    let width = self.rows.div_ceil(WORD);
                    nibble(col * width + row / WORD, AWQ_PLACE[row % WORD])
                }
                Layout::Packed => nibble(row * (self.cols / WORD) + col / WORD, col % WORD),
            }
        })
    }
}

/// Takes the scales as `[groups, rows]`.
fn scales(
    archive: &mut Archive,
    name: &str,
    (rows, groups): (usize, usize),
    layout: Layout,
) -> Result<Vec<f32>, LoadError> {
    let stored = if layout == Layout::Packed { [rows, groups] } else { [groups, rows] };
    let scales = take(archive, name, &["F16", "BF16", "F32"], &stored)?;
    let values = scales.floats();
    if !values.iter().all(|scale| scale.is_finite()) {
        return Err(refuse(&scales, "finite scales".into()));
    }
    match layout {
        Layout::Packed => Ok(transposed(&values, rows, groups)),
        Layout::Gptq | Layout::Awq => Ok(values),
    }
}

/// Takes the zero points as `[groups, rows]`.
fn zeros(
    archive: &mut Archive,
    name: &str,
    (rows, groups): (usize, usize),
    quantization: Quantization,
) -> Result<Vec<u8>, LoadError> {
    let width = rows.div_ceil(WORD);
    let is_packed = matches!(quantization, Quantization::Packed { .. });
    let shape = if is_packed { [width, groups] } else { [groups, width] };
    let stored = take(archive, name, &["I32"], &shape)?;
    let words: Vec<u32> = stored.words().collect();
    // Added to the word, as GPTQModel does and as it subtracted: a zero point of 0 has borrowed.
    let less = match quantization {
        Quantization::Gptq { zeros_less_one: true, .. } => 0x1111_1111,
        _ => 0,
    };
    let is_awq = matches!(quantization, Quantization::Awq { .. });
    let zero = |group: usize, row: usize| {
        let (word, place) = (row / WORD, row % WORD);
        let word = if is_packed { word * groups + group } else { group * width + word };
        let place = if is_awq { AWQ_PLACE[place] } else { place };
        (words[word].wrapping_add(less) >> (4 * place) & 15) as u8
    };
    let zero = &zero;
    Ok((0..groups).flat_map(|group| (0..rows).map(move |row| zero(group, row))).collect())
}

/// Takes the group of each column.
fn order_of_groups(
    archive: &mut Archive,
    name: &str,
    cols: usize,
    groups: usize,
) -> Result<Vec<u32>, LoadError> {
    let stored = take(archive, name, &["I32"], &[cols])?;
    let order: Vec<u32> = stored.words().collect();
    match order.iter().all(|group| (*group as usize) < groups) {
        true => Ok(order),
        false => Err(refuse(&stored, format!("groups below {groups}"))),
    }
}

fn transposed(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|col| (0..rows).map(move |row| values[row * cols + col])).collect()
}
