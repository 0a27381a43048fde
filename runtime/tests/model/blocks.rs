//! [`Dtype::widen`] on random blocks of every quantized type against the Python package gguf.
//!
//! The same bits are required: scale times integer is exact in f32 (at most 23 significant bits),
//! so both round once, where a minimum is added. Only a zero may have another sign.

use trail_runtime::model::Dtype;

/// Written by `runtime/tests/golden/make/blocks.py`, which states the format.
const GOLDEN: &[u8] = include_bytes!("blocks.bin");

/// Splits the next `len` bytes off.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, after) = rest.split_at(len);
    *rest = after;
    first
}

#[test]
fn widened_blocks_are_those_of_ggufs_reference() {
    let mut rest = GOLDEN;
    let mut names = Vec::new();
    while !rest.is_empty() {
        let name = String::from_utf8_lossy(take(&mut rest, 8)).trim_end_matches('\0').to_owned();
        let dtype = Dtype::ALL.into_iter().find(|dtype| dtype.to_string() == name).expect(&name);
        let [blocks, bytes, values] =
            [(); 3].map(|()| u32::from_le_bytes(take(&mut rest, 4).try_into().unwrap()) as usize);
        assert_eq!((dtype.block_bytes(), dtype.block_values()), (bytes, values), "{name}");
        let mut found = vec![0.0; blocks * values];
        dtype.widen(take(&mut rest, blocks * bytes), &mut found);
        let expected = take(&mut rest, 4 * found.len()).as_chunks().0;
        for (i, (found, &expected)) in found.iter().zip(expected).enumerate() {
            let expected = f32::from_le_bytes(expected);
            // +0 equals -0; a NaN would fail.
            assert!(*found == expected, "{name}, value {i}: {found:e} instead of {expected:e}");
        }
        names.push(name);
    }
    let quantized = Dtype::ALL.into_iter().filter(|dtype| dtype.is_quantized());
    assert_eq!(names, quantized.map(|dtype| dtype.to_string()).collect::<Vec<_>>());
}
