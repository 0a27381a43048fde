//! Operands of a product in shared memory.

use crate::exec::Cx;
use crate::exec::lanes::LANES;
use crate::exec::shared::{Trouble, WARPS};
use crate::memory::Swizzle;
use crate::report::Kind;

/// Rows in shared memory, as a matrix descriptor names them: of K elements, or of all columns of a
/// transposed operand.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) start: u64,
    /// Bytes from as many elements of a row as the swizzle spans to the next.
    leading: u64,
    /// Bytes from eight rows to the next eight.
    pub(super) stride: u64,
    swizzle: Swizzle,
}

impl Rows {
    /// Bits 0-13 start, 16-29 leading, 32-45 stride (in units of 16 bytes), 49-51 base offset,
    /// 62-63 swizzle.
    pub(super) fn decode(descriptor: u64) -> Result<Rows, Trouble> {
        let swizzle = match descriptor >> 62 {
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            3 => Swizzle::Bytes32,
            _ => Swizzle::None,
        };
        if swizzle == Swizzle::None || descriptor >> 49 & 7 != 0 {
            let detail = format!(
                "descriptor {descriptor:#x}: only swizzled operands without a base offset are \
                 supported"
            );
            return Err((Kind::Refused, detail));
        }
        let field = |from: u32| (descriptor >> from & 0x3fff) * 16;
        Ok(Rows { start: field(0), leading: field(16), stride: field(32), swizzle })
    }

    /// Shared address of elements `8 * chunk..` of row `row`.
    pub(super) fn chunk(self, row: usize, chunk: usize) -> u64 {
        let pitch = self.swizzle.span().unwrap_or_default();
        let (group, row) = (row as u64 / 8, row as u64 % 8);
        let (block, chunk) = (chunk as u64 * 16 / pitch, chunk as u64 * 16 % pitch);
        let at = self.start + block * self.leading + group * self.stride + row * pitch + chunk;
        self.swizzle.apply(at)
    }

    /// Chunk `chunk` of eight rows from `first` on as one register of a tensor core's fragment.
    pub(super) fn fragment(
        self,
        cx: &mut Cx<'_>,
        first: usize,
        chunk: usize,
    ) -> Result<[u32; LANES], Trouble> {
        let mut words = [0; LANES];
        for (row, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let at = self.chunk(first + row, chunk);
            cx.shared.check_async(cx.warp.number, at, 16)?;
            let bytes = &cx.shared.bytes()[at as usize..][..16];
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
        }
        Ok(words)
    }

    /// Checks that `extent` rows and elements of each may be read now, and that the warp knew of
    /// their last writes at the issue (`known`).
    pub(super) fn check(
        self,
        cx: &mut Cx<'_>,
        extent: [usize; 2],
        known: &[u32; WARPS],
    ) -> Result<(), Trouble> {
        let [rows, chunks] = [extent[0], extent[1] / 8];
        (0..rows * chunks).try_for_each(|index| {
            let at = self.chunk(index / chunks, index % chunks);
            cx.shared.check_unchanged(at, 16, known)?;
            cx.shared.check_async(cx.warp.number, at, 16)
        })
    }
}
