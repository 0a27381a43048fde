//! The tensor maps of `cuTensorMapEncodeTiled`, by which bulk copies find the rows of a matrix.
//! Drivers keep their layout to themselves; this is the emulator's own.

/// Words of a tensor map.
pub(crate) const WORDS: usize = 16;
/// First word of a tensor map.
const MAGIC: u64 = u64::from_le_bytes(*b"trailmap");

/// A matrix in global memory, and the box of it that a copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    /// Device address.
    pub(crate) base: u64,
    /// Bytes of an element.
    pub(crate) element: u64,
    /// Elements of a row, and rows.
    pub(crate) extents: [u64; 2],
    /// Bytes from one row to the next.
    pub(crate) row_bytes: u64,
    /// Elements of a row of the box, and rows.
    pub(crate) boxed: [u64; 2],
    pub(crate) swizzle: Swizzle,
}

/// How the rows of a box, or of a product's operand, are laid out in shared memory: bits 4 and up
/// of an address are exclusive-ored with bits 7 and up, as many as the mode has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swizzle {
    None,
    Bytes32,
    Bytes64,
    Bytes128,
}

impl Swizzle {
    /// The mode of a driver's constant.
    pub(crate) fn of_driver(value: u64) -> Option<Swizzle> {
        Some(match value {
            0 => Swizzle::None,
            1 => Swizzle::Bytes32,
            2 => Swizzle::Bytes64,
            3 => Swizzle::Bytes128,
            _ => return None,
        })
    }

    /// Bytes of a row that it permutes; `None` without a swizzle.
    pub(crate) fn span(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::Bytes32 => Some(32),
            Swizzle::Bytes64 => Some(64),
            Swizzle::Bytes128 => Some(128),
        }
    }

    /// The place of the byte at shared address `address` of an unpermuted matrix.
    pub(crate) fn apply(self, address: u64) -> u64 {
        let bits = self.span().map_or(0, |span| span / 16 - 1);
        address ^ (address >> 7 & bits) << 4
    }
}

impl TensorMap {
    pub(crate) fn encode(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let [(inner, rows), (columns, boxed_rows)] =
            [self.extents, self.boxed].map(|[inner, outer]| (inner, outer));
        let fields = [
            MAGIC,
            self.base,
            self.element,
            inner,
            rows,
            self.row_bytes,
            columns,
            boxed_rows,
            self.swizzle as u64,
        ];
        words[..fields.len()].copy_from_slice(&fields);
        words
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<TensorMap> {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [magic, base, element, inner, rows, row_bytes, columns, boxed_rows, swizzle, ..] =
            words;
        (magic == MAGIC).then_some(TensorMap {
            base,
            element,
            extents: [inner, rows],
            row_bytes,
            boxed: [columns, boxed_rows],
            swizzle: Swizzle::of_driver(swizzle)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swizzle_permutes_the_sixteen_byte_chunks_of_eight_rows() {
        for (swizzle, chunks) in
            [(Swizzle::Bytes32, 2), (Swizzle::Bytes64, 4), (Swizzle::Bytes128, 8)]
        {
            let mut places: Vec<u64> =
                (0..64).map(|chunk| swizzle.apply(4096 + chunk * 16)).collect();
            // Row 1 of 128 bytes: its chunks are exclusive-ored with 1.
            assert_eq!(places[8..10], [4096 + 9 * 16, 4096 + 8 * 16]);
            let moved = (0..64).filter(|&i| places[i] != 4096 + i as u64 * 16).count();
            assert_eq!(moved, 64 - 64 / chunks);
            places.sort_unstable();
            assert!(places.iter().enumerate().all(|(i, &at)| at == 4096 + i as u64 * 16));
        }
    }
}
