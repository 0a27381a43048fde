//! Orders of summing, as values: functions of a product's shape and the architecture alone, so that
//! a row's bits depend neither on other rows, nor on the grid or the chip (docs/one-answer.md).

use super::shuffle::{FEATURES, WIDTH};
use std::fmt;
use trail_ptx::Target;

/// Pieces begin at multiples of so many elements along k.
pub const UNIT: usize = 128;
/// Fewest units of a piece: a shorter one is not worth a block of threads, and its sums.
const LEAST_UNITS: usize = 4;
/// Tiles times pieces that a product has if its depth allows it: with one token tile about a block
/// for each multiprocessor of an A100 or H200. Not the chip's own number: then another chip would
/// sum in another order.
const BLOCKS: usize = 128;
/// Most pieces: sums that the fix-up of a tile adds.
const MAX_PIECES: usize = 16;
/// On sm_80, up to so many pieces where the blocks of fewer would leave more of an A100's
/// multiprocessors idle than [`MAX_WASTE`]: there a total that a block carries costs a twentieth of
/// 4,096 deep products, by wgmma twice that.
const MAX_EVEN_PIECES: usize = 4;
const A100: usize = 108;
/// Most time of whole waves of blocks, over that of equal shares.
const MAX_WASTE: f64 = 1.2;

/// Which orders a plan may choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderChoice {
    /// That of the shape: an answer does not depend on the batch.
    #[default]
    Fixed,
    /// The faster of the fixed order and a single piece, for products of more than 64 rows. Answers
    /// may differ where two logits are within rounding.
    Free,
}

/// The order in which a product sums along k (kernels/common/split_k.cuh): pieces of the padded
/// depth, each a chain of mma's of 16 that begins at zero, added one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Depth, padded.
    pub width: usize,
    /// Number of pieces.
    pub pieces: usize,
}

impl Order {
    /// The order of a product of `features` output features and `width` inputs, of any number of
    /// rows, on any chip of the architecture `target`; `None`: one that compiles the text of sm_80.
    pub fn of(target: Option<Target>, features: usize, width: usize) -> Order {
        let width = width.next_multiple_of(WIDTH);
        let tiles = features.div_ceil(FEATURES);
        let max = (width / UNIT / LEAST_UNITS).clamp(1, MAX_PIECES);
        let pieces = match target {
            Some(Target::Sm90a) => BLOCKS / tiles,
            _ => even_pieces(tiles, max),
        };
        Order { width, pieces: pieces.clamp(1, max) }
    }

    /// The orders to choose from; the first is that of the shape.
    pub fn choices(
        target: Option<Target>,
        features: usize,
        width: usize,
        choice: OrderChoice,
    ) -> Vec<Order> {
        let fixed = Order::of(target, features, width);
        match choice {
            OrderChoice::Free if fixed.pieces > 1 => vec![fixed, Order { pieces: 1, ..fixed }],
            _ => vec![fixed],
        }
    }

    /// First element of piece `piece`; with the number of pieces, the width.
    pub fn begin(&self, piece: usize) -> usize {
        self.width / UNIT * piece / self.pieces * UNIT
    }

    /// Tiles that a product's workspace has room for: a sum for each piece where a block has one of
    /// `tiles` tiles, a total for each of `blocks` blocks where it has all.
    pub(super) fn workspace(&self, tiles: usize, blocks: usize, piece_per_block: bool) -> usize {
        match (self.pieces, piece_per_block) {
            (1, _) => 0,
            (pieces, true) => tiles * pieces,
            (_, false) => blocks,
        }
    }

    /// Depth of the longest piece.
    pub fn longest(&self) -> usize {
        (0..self.pieces).map(|piece| self.begin(piece + 1) - self.begin(piece)).max().unwrap_or(0)
    }
}

/// The fewest pieces of `tiles` tiles whose blocks waste little of an A100, or those that waste
/// least; at most `max`.
fn even_pieces(tiles: usize, max: usize) -> usize {
    let waste = |pieces: &usize| {
        let blocks = tiles * pieces;
        (blocks.div_ceil(A100) * A100) as f64 / blocks as f64
    };
    let all = 1..=(BLOCKS / tiles).max(MAX_EVEN_PIECES).min(max);
    let enough = all.clone().find(|pieces| waste(pieces) <= MAX_WASTE);
    enough.or_else(|| all.min_by(|a, b| waste(a).total_cmp(&waste(b)))).unwrap_or(1)
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k=")?;
        for piece in 0..self.pieces {
            let plus = if piece > 0 { "+" } else { "" };
            write!(f, "{plus}{}", self.begin(piece + 1) - self.begin(piece))?;
        }
        write!(f, " by 16")
    }
}

/// Partitions of a context (kernels/common/order.cuh): tokens of a partition, and the position up
/// to which they are so long. Attention sums each apart, and adds them in their order.
pub(super) const PARTITIONS: [(usize, usize); 3] =
    [(512, 8192), (2048, 32_768), (8192, usize::MAX)];

/// Number of partitions of a context of `tokens` tokens; at least 1.
pub fn partitions(tokens: usize) -> usize {
    let mut from = 0;
    let mut count = 0;
    for (size, until) in PARTITIONS {
        count += (tokens.min(until) - from.min(tokens)).div_ceil(size);
        from = until;
    }
    count.max(1)
}

/// Tokens of the longest partition of such a context.
pub fn longest_partition(tokens: usize) -> usize {
    let mut from = 0;
    let mut longest = 0;
    for (size, until) in PARTITIONS {
        longest = longest.max((tokens.min(until) - from.min(tokens)).min(size));
        from = until;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: [Option<Target>; 4] =
        [None, Some(Target::Sm80), Some(Target::Sm90a), Some(Target::Sm120)];

    #[test]
    fn llamas_products_have_a_piece_for_each_multiprocessor() {
        let orders = |features, width| TARGETS.map(|of| Order::of(of, features, width).to_string());
        let check = |features, width, sm_80: &str, sm_90a: &str| {
            assert_eq!(orders(features, width), [sm_80, sm_80, sm_90a, sm_80]);
        };
        check(6144, 4096, "k=2048+2048 by 16", "k=2048+2048 by 16");
        check(4096, 4096, "k=1280+1408+1408 by 16", "k=1024+1024+1024+1024 by 16");
        check(28672, 4096, "k=1280+1408+1408 by 16", "k=4096 by 16");
        check(4096, 14336, "k=4736+4736+4864 by 16", "k=3584+3584+3584+3584 by 16");
        check(128_256, 4096, "k=4096 by 16", "k=4096 by 16");
        // Qwen2.5-0.5B's down projection: nine pieces for 7 tiles.
        let nine = "k=512+512+512+512+640+512+512+512+640 by 16";
        check(896, 4864, nine, nine);
    }

    #[test]
    fn long_contexts_have_few_partitions() {
        let found = [1, 512, 513, 8192, 8193, 10_240, 32_768, 32_769, 131_072].map(partitions);
        assert_eq!(found, [1, 1, 2, 16, 17, 17, 28, 29, 40]);
        assert_eq!([100, 600, 9000, 40_000].map(longest_partition), [100, 512, 808, 7232]);
    }

    #[test]
    fn pieces_are_whole_units_and_cover_the_width() {
        for features in (8..6000).step_by(104) {
            for width in (8..9000).step_by(296) {
                let order = Order::of(TARGETS[width / 8 % 3], features, width);
                assert_eq!((order.begin(0), order.begin(order.pieces)), (0, order.width));
                assert!(order.pieces <= MAX_PIECES && order.width >= width);
                for piece in 0..order.pieces {
                    let depth = order.begin(piece + 1) - order.begin(piece);
                    assert!(depth.is_multiple_of(UNIT), "{order}");
                    assert!(depth >= LEAST_UNITS * UNIT || order.pieces == 1, "{order}");
                }
            }
        }
    }
}
