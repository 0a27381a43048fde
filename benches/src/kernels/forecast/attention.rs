//! Forecasts of the attention kernels.

use trail_runtime::cuda::plan::LaunchPlan;

use super::{
    CHAIN, CONSUMERS, Forecast, Forecaster, HMMA_FLOPS, IDLE_LATENCY, MERGED, MUFU_CLOCKS, PARTS_S,
    Rates, Sass, small,
};

/// Tokens of a partition of a short context; long ones have fewer and longer ones.
const SMALL_PARTITION: f64 = 512.0;

impl Forecaster {
    pub(super) fn attention_decode(&self, plan: &LaunchPlan, sass: &Sass) -> Forecast {
        let Rates { chip, clock_hz, latency_s, .. } = self.rates;
        let head_dim = plan.shape.extent("head_dim").unwrap_or(128) as f64;
        let blocks: f64 = plan.grid.iter().map(|&extent| f64::from(extent)).product();
        let in_flight = f64::from(chip.multiprocessors * plan.resident(&chip));
        let waves = (blocks / in_flight).max(1.0);
        // A warp takes 16 tokens at a time, keys and values.
        let warps = blocks * f64::from(plan.block / 32);
        let rounds = (plan.bytes as f64 / (16.0 * head_dim * 4.0) / warps).ceil();
        let in_flight = f64::from(plan.shared_bytes) * sass.pending_groups.max(0.5)
            / (sass.pending_groups + 1.0);
        let share = plan.bytes as f64 / blocks.min(in_flight);
        let terms = [
            ("read bandwidth", plan.bytes as f64 / self.rates.read_bytes_per_s),
            ("bytes in flight", share / in_flight * latency_s),
            ("chain of a warp", rounds * waves * CHAIN * (sass.lead + sass.span) / clock_hz),
        ];
        // Position, block table, keys: each load waits for the one before. With a block a
        // multiprocessor at most there is room beside the predecessor's: then all these loads come
        // before its end, but for those of the queries and the newest token.
        let is_early = self.overlaps(plan) && blocks <= f64::from(chip.multiprocessors);
        let begin = if is_early { 1.0 } else { 3.0 } * latency_s * IDLE_LATENCY;
        // The last split reads the others' sums in batches; the first one is in the edge.
        let merge = PARTS_S * ((f64::from(plan.splits) / MERGED).ceil() - 1.0);
        self.total(&terms, begin + merge + self.edge_s(plan, sass))
    }

    pub(super) fn attention_prefill(&self, plan: &LaunchPlan, sass: &Sass) -> Forecast {
        let Rates { chip, clock_hz, hmma_clocks, .. } = self.rates;
        // The kernel of whole tiles ends partitions within its loop, in code that is jumped over;
        // the other's loop is the same without.
        let other = plan.kernel.replace("attention_prefill_hd", "attention_prefill_split_hd");
        let sass = self.report(&other).unwrap_or(sass);
        let iterations = plan.flops as f64 / (sass.hmma * HMMA_FLOPS);
        let blocks = f64::from(plan.grid[0] * plan.grid[1]);
        let a_multiprocessor = iterations / small::busy_multiprocessors(&chip, plan, blocks);
        let a_scheduler = a_multiprocessor / 4.0;
        // Softmax depends on one product and the next on it: with two warps a scheduler they count
        // as not overlapped.
        let others = sass.lead + sass.span - sass.hmma;
        let terms = [
            ("products and softmax", a_scheduler * (sass.hmma * hmma_clocks + others) / clock_hz),
            ("exponentials", a_scheduler * sass.mufu * MUFU_CLOCKS / clock_hz),
            // A fragment of four matrices has 512 bytes, at 128 a clock.
            ("shared memory", a_multiprocessor * sass.ldsm * 4.0 / clock_hz),
            ("read bandwidth", plan.bytes as f64 / self.rates.read_bytes_per_s),
        ];
        let ends = self.parts_s(plan, blocks) + self.partitions_s(plan, blocks);
        self.total(&terms, self.edge_s(plan, sass) + ends)
    }

    /// Seconds in which blocks with all partitions of a tile write totals to L2 and read them.
    fn partitions_s(&self, plan: &LaunchPlan, blocks: f64) -> f64 {
        let Rates { chip, clock_hz, l2_bytes_per_clock, .. } = self.rates;
        let head_dim = plan.shape.extent("head_dim").unwrap_or(128) as f64;
        let tile_bytes = small::PART_QUERIES * head_dim * 4.0;
        let partitions = plan.flops as f64 / (tile_bytes * SMALL_PARTITION);
        let a_multiprocessor = partitions / small::busy_multiprocessors(&chip, plan, blocks);
        let bytes = if plan.splits > 1 { 0.0 } else { 2.0 * tile_bytes };
        a_multiprocessor * bytes / l2_bytes_per_clock / clock_hz
    }

    /// Seconds in which the blocks of a split launch store their parts, as floats: they all end at
    /// about one time.
    fn parts_s(&self, plan: &LaunchPlan, blocks: f64) -> f64 {
        let Rates { chip, clock_hz, l2_bytes_per_clock, .. } = self.rates;
        let head_dim = plan.shape.extent("head_dim").unwrap_or(128) as f64;
        let a_multiprocessor = (blocks / f64::from(chip.multiprocessors)).ceil();
        let bytes = a_multiprocessor * small::PART_QUERIES * head_dim * 4.0;
        if plan.splits > 1 { bytes / l2_bytes_per_clock / clock_hz } else { 0.0 }
    }

    /// An iteration is a warpgroup's 64 queries over 64 tokens.
    pub(super) fn attention_wgmma(&self, plan: &LaunchPlan, sass: &Sass) -> Forecast {
        let Rates { chip, clock_hz, l2_bytes_per_clock, .. } = self.rates;
        let extent = |name| plan.shape.extent(name).unwrap_or(1) as f64;
        let flops = 64.0 * 64.0 * 4.0 * extent("head_dim");
        let works = extent("rows") * extent("group") / 128.0 * extent("kv_heads");
        let pieces = works.ceil() * f64::from(plan.splits);
        let all = plan.flops as f64 / flops / small::busy_multiprocessors(&chip, plan, pieces);
        let products = flops / self.rates.matrix_flops_per_clock();
        // The end of a partition is two operations a place, for eight tiles or more.
        let is_cut = plan.splits > 1;
        let ends = if is_cut { 0.0 } else { extent("head_dim") / 8.0 };
        let others = sass.instructions - sass.hgmma + ends;
        // A warpgroup's softmax waits for its scores, half of its products; the other half, and all
        // of the other warpgroup's, overlap.
        let chain = products / 2.0 + CHAIN * others;
        let bytes = 64.0 * 4.0 * extent("head_dim");
        let terms = [
            ("products", all * products / clock_hz),
            ("scores, then softmax", all / CONSUMERS * chain / clock_hz),
            // A scheduler has a warp of each warpgroup.
            ("issue slots", all * others / clock_hz),
            ("exponentials", all * sass.mufu * MUFU_CLOCKS / clock_hz),
            ("L2", all / CONSUMERS * bytes / l2_bytes_per_clock / clock_hz),
        ];
        // Nothing overlaps with the first tile of a partition and with the values of its last, and
        // half of the tiles at the diagonal is masked: two tiles alone, one more a partition.
        let rounds = (pieces / f64::from(plan.grid[0])).max(1.0);
        let tokens = plan.flops as f64 / (works * 4.0 * 128.0 * extent("head_dim"));
        let more = if is_cut { 0.0 } else { tokens / SMALL_PARTITION };
        let ends = rounds * (2.0 + more) * (products / 2.0 + chain) / clock_hz;
        self.total(&terms, self.edge_s(plan, sass) + ends + self.parts_s(plan, pieces))
    }
}
