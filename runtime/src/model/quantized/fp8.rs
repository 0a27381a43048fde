//! Matrices of 8-bit floats, widened to bf16.

use half::bf16;

use super::super::archive::{Archive, RawTensor};
use super::super::error::LoadError;
use super::super::{Dtype, Tensor};
use super::{copy_tiles, refuse, take};

/// Name of the stored type: 4 bits of exponent, 3 of mantissa, no infinity.
pub(super) const STORED: &str = "F8_E4M3";

/// Every value, by its byte.
const VALUES: [f32; 256] = values();

/// Takes the `[rows, cols]` matrix of `module` and its scale, whose name is `scale`, and multiplies
/// them: in f32, rounded once to bf16, as transformers does. A scale is for the whole matrix, for
/// each row, or for each `block` of rows and columns; the last ones may be shorter.
pub(super) fn widen(
    archive: &mut Archive,
    module: &str,
    (rows, cols): (usize, usize),
    (scale, block): (&str, Option<[usize; 2]>),
) -> Result<Tensor, LoadError> {
    let codes = take(archive, &format!("{module}.weight"), &[STORED], &[rows, cols])?;
    // Checkpoints of AutoFP8 have `quant_method` `fp8` and the other name.
    let names = [scale, "weight_scale"].map(|scale| format!("{module}.{scale}"));
    let Some(scales) = names.iter().find_map(|name| archive.take_raw(name)) else {
        let expected = "a scale of the weight";
        let remedy = "download the file again, or choose another checkpoint of the model";
        return Err(LoadError::new(archive.file(), &names[0], expected, "no such tensor", remedy));
    };
    let (block_rows, block_cols) = block_of(&scales, (rows, cols), block)?;
    let values = scales.floats();
    let per_row = cols.div_ceil(block_cols);
    Ok(copy_tiles(Dtype::Bf16, (rows, cols), |first, out| {
        for (row, out) in (first..).zip(out.chunks_exact_mut(2 * cols)) {
            let codes = codes.bytes()[row * cols..][..cols].chunks(block_cols);
            let scales = &values[row / block_rows * per_row..];
            for ((codes, scale), out) in codes.zip(scales).zip(out.chunks_mut(2 * block_cols)) {
                for (code, out) in codes.iter().zip(out.as_chunks_mut().0) {
                    *out = bf16::from_f32(VALUES[usize::from(*code)] * scale).to_le_bytes();
                }
            }
        }
    }))
}

/// Rows and columns with one of `scales`, by its shape.
fn block_of(
    scales: &RawTensor,
    (rows, cols): (usize, usize),
    block: Option<[usize; 2]>,
) -> Result<(usize, usize), LoadError> {
    let by_block = block.map(|[high, wide]| vec![rows.div_ceil(high), cols.div_ceil(wide)]);
    let is_float = ["F16", "BF16", "F32"].contains(&scales.dtype.as_str());
    let found = match (&scales.shape[..], block) {
        _ if !is_float => None,
        (shape, Some([high, wide])) => (by_block.as_deref() == Some(shape)).then_some((high, wide)),
        ([] | [1] | [1, 1], None) => Some((rows, cols)),
        ([count] | [count, 1], None) if *count == rows => Some((1, cols)),
        _ => None,
    };
    let expected = match &by_block {
        Some(shape) => format!("F16, BF16 or F32 {shape:?}"),
        None => format!("F16, BF16 or F32 [1] or [{rows}, 1]"),
    };
    found.ok_or_else(|| refuse(scales, expected))
}

const fn values() -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = (code as i32 >> 3 & 15, code as i32 & 7);
        // Without an implicit bit where the exponent is 0; steps of 2^-9 there and above it.
        let steps = if exponent == 0 { mantissa } else { (8 + mantissa) << (exponent - 1) };
        let value = match code & 127 {
            127 => f32::NAN,
            _ => steps as f32 / 512.0,
        };
        values[code] = if code < 128 { value } else { -value };
        code += 1;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: sign, exponent less 7, mantissa in eighths.
    #[test]
    fn every_code_has_its_value() {
        for code in 0..=255_u8 {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let magnitude = match exponent {
                0 => mantissa / 8.0 * 2f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
            };
            let expected = if code < 128 { magnitude } else { -magnitude };
            match code & 127 {
                127 => assert!(VALUES[usize::from(code)].is_nan()),
                _ => assert_eq!(f64::from(VALUES[usize::from(code)]), expected, "{code}"),
            }
        }
        assert_eq!(VALUES[0x7e], 448.0);
    }
}
