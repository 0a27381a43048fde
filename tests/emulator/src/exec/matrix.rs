//! `ldmatrix`, `stmatrix` and `movmatrix`: 8x8 tiles of 16-bit elements, with rows of 16 bytes. In
//! registers lane l holds elements 2 * (l % 4) and the next of row l / 4, so the 32 words of a tile
//! are its rows one after another.

use super::Cx;
use super::lanes::{FULL, LANES, Lane};
use super::memory::addresses;
use super::shared::Manner;
use crate::memory::SHARED_WINDOW;
use crate::ptx::program::Inst;
use crate::report::Kind;

/// Bytes of a row.
const ROW: u64 = 16;

/// `ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16`; `access.count` is N, `access.signed` says
/// transposed.
pub(crate) fn load(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if !whole(cx, mask) {
        return;
    }
    let rows = addresses(cx, i.s[0], i.imm);
    for tile in 0..usize::from(i.access.count) {
        let mut words = [0u32; LANES];
        for row in 0..8 {
            let lane = tile * 8 + row;
            let Some(bytes) = line(cx, lane, rows[lane], Manner::ReadTogether) else { return };
            for (word, four) in words[row * 4..row * 4 + 4].iter_mut().zip(bytes.chunks_exact(4)) {
                *word = four.try_into().map(u32::from_le_bytes).unwrap_or_default();
            }
        }
        if i.access.signed {
            words = transpose(&words);
        }
        u32::write(&mut cx.warp.registers, i.d[tile], &words, FULL);
    }
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`
pub(crate) fn move_transposed(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if whole(cx, mask) {
        let words = u32::read(&cx.warp.registers, i.s[0]);
        u32::write(&mut cx.warp.registers, i.d[0], &transpose(&words), FULL);
    }
}

/// Instructions that the whole warp executes.
pub(crate) fn whole(cx: &mut Cx<'_>, mask: u32) -> bool {
    if mask != FULL {
        let detail = format!("lanes {:#010x} of the warp are elsewhere", !mask);
        cx.fault(Kind::BarrierDivergence, mask.trailing_zeros() as usize, detail);
    }
    mask == FULL
}

fn line<'a>(cx: &'a mut Cx<'_>, lane: usize, address: u64, manner: Manner) -> Option<&'a [u8]> {
    let address = if address >= SHARED_WINDOW { address - SHARED_WINDOW } else { address };
    if let Err((kind, detail)) = cx.shared.check(cx.warp.number, lane, address, ROW, manner) {
        cx.fault(kind, lane, detail);
        return None;
    }
    Some(&cx.shared.bytes()[address as usize..(address + ROW) as usize])
}

fn transpose(words: &[u32; LANES]) -> [u32; LANES] {
    let element =
        |row: usize, column: usize| words[row * 4 + column / 2] >> (16 * (column % 2)) & 0xFFFF;
    std::array::from_fn(|lane| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        element(column, row) | element(column + 1, row) << 16
    })
}
