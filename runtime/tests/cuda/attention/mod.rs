//! Proof of the attention kernels: each against its naive reference, over random shapes, on
//! whatever driver there is.

mod cache;
mod decode;
mod order;
mod prefill;
mod reference;

use decode::{Case, Kernel};
use prefill::Share;
use trail_runtime::cuda::plan::attention::{self, Heads};
use trail_test_support::cuda;
use trail_test_support::cuda::Chance;

const LLAMA: Heads = Heads { kv_heads: 2, group: 4, head_dim: 128 };

/// Ragged batches, block tables in random order, groups of any size, windows, padding rows, any
/// number of splits.
#[test]
fn decode_is_its_reference() {
    let bench = cuda::Bench::open();
    let mut chance = Chance(11);
    for _ in 0..24 {
        let case = Case::random(&mut chance, 4096);
        decode::check(&bench, &mut chance, &case, Kernel::Fast);
    }
}

/// Lengths at the edges of blocks, of the warps' turns and of the splits.
#[test]
fn decode_at_every_edge() {
    let bench = cuda::Bench::open();
    let mut chance = Chance(12);
    for (head_dim, group, splits) in [(128, 4, 1), (64, 1, 2), (128, 16, 3), (64, 32, 2)] {
        let lengths = [1, 15, 16, 17, 31, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1025];
        let rows = lengths.iter().map(|&length| Some(length)).collect();
        let case =
            Case { heads: Heads { kv_heads: 1, group, head_dim }, window: None, rows, splits };
        decode::check(&bench, &mut chance, &case, Kernel::Fast);
    }
    for window in [1, 16, 17, 100, 4096] {
        let rows =
            [1, 16, 17, 99, 100, 101, 300, 1030].iter().map(|&length| Some(length)).collect();
        let case = Case { heads: LLAMA, window: Some(window), rows, splits: 4 };
        decode::check(&bench, &mut chance, &case, Kernel::Fast);
    }
}

/// As many splits as there can be, of a long context.
#[test]
fn decode_of_one_long_context() {
    let bench = cuda::Bench::open();
    let mut chance = Chance(13);
    let planned = attention::decode(bench.device.chip(), 2, LLAMA, 4096).launch.splits as usize;
    assert!(planned > 1, "two rows leave any chip empty");
    for splits in [13, 64, planned] {
        let case = Case { heads: LLAMA, window: None, rows: vec![Some(4096), None], splits };
        decode::check(&bench, &mut chance, &case, Kernel::Fast);
    }
}

#[test]
fn rungs_of_the_ladder_are_their_reference() {
    let bench = cuda::Bench::open();
    let mut chance = Chance(14);
    for rung in [1, 2] {
        for _ in 0..6 {
            let case = Case::random(&mut chance, 700);
            decode::check(&bench, &mut chance, &case, Kernel::Rung(rung));
        }
    }
}

/// Chunks that fill no tile, over contexts of any length, beside any other requests.
#[test]
fn prefill_is_its_reference() {
    prefill::random_chunks(&cuda::Bench::open(), prefill::Kernel::Portable, Share::Whole);
}

/// Whole prompts and edges of tiles, with and without a window.
#[test]
fn prefill_at_every_edge() {
    prefill::every_edge(&cuda::Bench::open(), prefill::Kernel::Portable, Share::Whole);
}

/// Every place of a chunk's first row in a tile of tokens: the tiles that need no mask are chosen
/// by the first row of a tile of queries, which 65 rows begin twice.
#[test]
fn prefill_masks_at_every_residue_of_the_context() {
    prefill::every_residue(&cuda::Bench::open(), prefill::Kernel::Portable);
}

#[test]
fn wgmma_prefill_is_its_reference() {
    let Some(bench) = cuda::Bench::hopper() else { return };
    prefill::random_chunks(&bench, prefill::Kernel::Wgmma, Share::Whole);
}

#[test]
fn wgmma_prefill_at_every_edge() {
    let Some(bench) = cuda::Bench::hopper() else { return };
    prefill::every_edge(&bench, prefill::Kernel::Wgmma, Share::Whole);
}

#[test]
fn wgmma_prefill_masks_at_every_residue_of_the_context() {
    let Some(bench) = cuda::Bench::hopper() else { return };
    prefill::every_residue(&bench, prefill::Kernel::Wgmma);
}

/// Contexts cut into partitions, beside any other requests, with and without a window: rows that
/// see nothing of a partition, and partitions that only some rows of a tile see.
#[test]
fn split_prefill_is_its_reference() {
    prefill::random_chunks(&cuda::Bench::open(), prefill::Kernel::Portable, Share::Cut);
}

/// Edges of tiles and blocks in partitions, and a context of eight of these.
#[test]
fn split_prefill_at_every_edge() {
    prefill::every_edge(&cuda::Bench::open(), prefill::Kernel::Portable, Share::Cut);
}

#[test]
fn split_prefill_has_the_bits_of_whole_tiles() {
    prefill::partitions_of_several_requests(&cuda::Bench::open(), prefill::Kernel::Portable);
}

#[test]
fn split_wgmma_prefill_is_its_reference() {
    let Some(bench) = cuda::Bench::hopper() else { return };
    prefill::random_chunks(&bench, prefill::Kernel::Wgmma, Share::Cut);
}

#[test]
fn split_wgmma_prefill_at_every_edge() {
    let Some(bench) = cuda::Bench::hopper() else { return };
    prefill::every_edge(&bench, prefill::Kernel::Wgmma, Share::Cut);
}

#[test]
fn split_wgmma_prefill_has_the_bits_of_whole_tiles() {
    let Some(bench) = cuda::Bench::hopper() else { return };
    prefill::partitions_of_several_requests(&bench, prefill::Kernel::Wgmma);
}
