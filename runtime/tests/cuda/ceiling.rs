//! Proof of the ceilings: they do the work that they are timed for.

use trail_runtime::cuda::launch::Launch;
use trail_runtime::cuda::params::CeilingParams;
use trail_runtime::cuda::plan::bench::ceiling;
use trail_test_support::cuda::{Address, Bench, Chance};

/// The sum that all blocks' sums must have.
fn sum_of_words(words: &[u32]) -> u32 {
    words.iter().fold(0, |sum, &word| sum.wrapping_add(word))
}

#[test]
fn a_read_reads_every_word_once() {
    let bench = Bench::open();
    let mut chance = Chance(5);
    // Less than a block's worth, not a multiple of it, several rounds of the grid.
    for quads in [1, 255, 2048, 2049, 400_001] {
        let words: Vec<u32> = (0..quads * 4).map(|_| chance.next_u64() as u32).collect();
        let plan = ceiling::read(bench.device.chip(), quads);
        let mut data = bench.input(&words);
        let mut sums = bench.output(plan.grid[0] as usize * 4);
        let params = CeilingParams {
            data: data.at(&bench),
            sums: sums.at(&bench),
            quads: quads as i64,
            ..CeilingParams::default()
        };
        // SAFETY: as many pieces, and a sum for each block; both live until the read below has
        // waited.
        unsafe { bench.device.launch(&bench.stream, &Launch { plan, params }) }.unwrap();
        assert_eq!(sum_of_words(&bench.read::<u32>(&sums)), sum_of_words(&words), "{plan}");
    }
}

#[test]
fn a_product_of_registers_adds_one_to_each_sum() {
    let bench = Bench::open();
    for rounds in [1, 7] {
        let plan = ceiling::mma(bench.device.chip(), rounds);
        let mut sums = bench.output((plan.grid[0] * plan.block) as usize * 4);
        let to = sums.at(&bench);
        let params = CeilingParams { sums: to, rounds: rounds as i32, ..CeilingParams::default() };
        // SAFETY: a sum for each thread, alive until the read below has waited.
        unsafe { bench.device.launch(&bench.stream, &Launch { plan, params }) }.unwrap();
        let sums = bench.read::<f32>(&sums);
        assert!(sums.iter().all(|&sum| sum == 32.0 * rounds as f32), "{plan}");
    }
}
