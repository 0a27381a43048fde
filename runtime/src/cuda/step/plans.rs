//! Every plan that a step may need, made at start, and the workspaces of the largest plans.

use super::layout::StepLimits;
use super::sizes::Sizes;
use crate::cuda::error::CudaError;
use crate::cuda::plan::attention::split::PrefillSplit;
use crate::cuda::plan::attention::{self, DecodePlan, Heads, PrefillSegment, TILE_QUERIES};
use crate::cuda::plan::gemm::{self, Epilogue, GemmPlan, Product};
use crate::cuda::plan::hopper;
use crate::cuda::plan::megakernel::{MegakernelPlan, Products, megakernel};
use crate::cuda::plan::order::{Order, OrderChoice};
use crate::cuda::plan::sampling::{SamplingPlan, sampling, team};
use crate::cuda::plan::{Chip, LaunchPlan, order, step};
use crate::model::ModelConfig;

/// The products of a layer, for one number of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPlans {
    pub(super) embed: LaunchPlan,
    pub(super) products: Products,
}

/// Logits and sampling, for one number of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledPlans {
    pub(super) logits: GemmPlan,
    pub(super) sampling: SamplingPlan,
}

/// Plans by index of the sizes.
pub(super) struct Plans {
    /// Numbers of all rows of a step.
    pub(super) rows: Sizes,
    pub(super) layer: Box<[LayerPlans]>,
    /// Padded numbers of decode rows.
    pub(super) decode_sizes: Sizes,
    pub(super) decode: Box<[DecodePlan]>,
    /// The megakernel, where it is enabled and has a plan: by padded number of decode rows.
    pub(super) megakernel: Box<[Option<MegakernelPlan>]>,
    /// Numbers of rows of logits.
    pub(super) sampled_rows: Sizes,
    pub(super) sampled: Box<[SampledPlans]>,
    pub(super) heads: Heads,
    chip: Chip,
    /// Places of the chip for blocks of prefill attention, which share long contexts.
    split_places: usize,
    /// Parts for totals of prompt attention.
    prefill_totals: usize,
}

/// Workspaces of the largest plans.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Workspaces {
    /// Of the products: floats and counters.
    pub(super) partials: usize,
    pub(super) tile_counters: usize,
    /// Of attention: partitions of decode rows and of prompt chunks, which run one after another.
    pub(super) partial_out: usize,
    pub(super) partial_sums: usize,
    pub(super) attention_counters: usize,
    /// Of the sampler: floats, and words of five arrays.
    pub(super) weights: usize,
    pub(super) sums: usize,
    /// Floats, and places for tokens.
    pub(super) team_sums: usize,
    pub(super) band: usize,
}

impl Plans {
    /// Plans for steps within `limits`; with `use_megakernel` also those of the megakernel.
    pub(super) fn new(
        chip: &Chip,
        config: &ModelConfig,
        limits: &StepLimits,
        order: OrderChoice,
        use_megakernel: bool,
    ) -> Plans {
        let heads = Heads {
            kv_heads: config.num_kv_heads,
            group: config.num_heads / config.num_kv_heads,
            head_dim: config.head_dim,
        };
        let decode_sizes = Sizes::up_to(limits.segments);
        // Decode rows have padding of their own, and the prefill segments follow it.
        let rows = Sizes::up_to(limits.rows.max(limits.segments) + decode_sizes.max_padding());
        let layer: Box<[LayerPlans]> =
            rows.iter().map(|rows| LayerPlans::new(chip, config, rows, order)).collect();
        let decode: Box<[DecodePlan]> = decode_sizes
            .iter()
            .map(|rows| attention::decode(chip, rows, heads, limits.context))
            .collect();
        let fused = |(count, decode): (usize, &DecodePlan)| {
            let products = &layer[rows.index(count)].products;
            use_megakernel.then(|| megakernel(chip, products, decode)).flatten()
        };
        let megakernel = decode_sizes.iter().zip(&decode).map(fused).collect();
        let sampled_rows = decode_sizes.extended(limits.segments + limits.drafts);
        let plans_of = |rows| SampledPlans::new(chip, config, rows, order);
        let sampled = sampled_rows.iter().map(plans_of).collect();
        let by_wgmma = hopper::attention::prefill(chip, heads, &PrefillSplit::WHOLE, 1, 2, 2);
        let split_places = match by_wgmma {
            Some(_) => chip.multiprocessors as usize,
            None => attention::prefill_places(chip, heads.head_dim),
        };
        let mut plans = Plans {
            rows,
            layer,
            decode_sizes,
            decode,
            megakernel,
            sampled_rows,
            sampled,
            heads,
            chip: *chip,
            split_places,
            prefill_totals: 0,
        };
        plans.prefill_totals = plans.totals(limits);
        plans
    }

    /// Keeps cooperative launches to the blocks that `resident` says the device can hold at one
    /// time: of the megakernel the grid is cut; a sampler's teams become single blocks. Returns a
    /// warning if any did not fit.
    pub(super) fn fit_cooperative(
        &mut self,
        resident: impl Fn(&LaunchPlan) -> Result<u32, CudaError>,
    ) -> Result<Option<String>, CudaError> {
        let mut cut = None;
        let mut note = |planned, places| {
            cut.get_or_insert_with(|| {
                format!(
                    "the GPU holds {places} of {planned} blocks of a cooperative launch: such \
                     launches are smaller, or left out"
                )
            });
        };
        for fused in &mut self.megakernel {
            if let Some(plan) = fused {
                let (planned, places) = (plan.launch.grid[0], resident(&plan.launch)?);
                if places < planned {
                    note(planned, places);
                    plan.launch.grid[0] = places;
                }
                if places == 0 {
                    *fused = None;
                }
            }
        }
        for of in &mut self.sampled {
            let choose = of.sampling.launches[2];
            let planned = choose.grid[0] * choose.grid[1];
            if choose.cooperative && planned > resident(&choose)? {
                note(planned, resident(&choose)?);
                of.sampling = sampling(of.sampling.rows, of.sampling.vocab, 1);
            }
        }
        Ok(cut)
    }

    /// How the contexts of a step's prompt chunks are cut.
    pub(super) fn split(&self, segments: &[PrefillSegment], tiles: &[[i32; 2]]) -> PrefillSplit {
        PrefillSplit::choose(self.split_places, self.heads, segments, tiles)
    }

    /// Attention of `tiles` tiles that hold `rows` rows over `pairs` pairs of a row and a token,
    /// cut as `split` says: Hopper's own where it has one, the portable one otherwise.
    pub(super) fn prefill(
        &self,
        split: &PrefillSplit,
        tiles: usize,
        rows: usize,
        pairs: usize,
    ) -> LaunchPlan {
        let own = hopper::attention::prefill(&self.chip, self.heads, split, tiles, rows, pairs);
        own.unwrap_or_else(|| attention::prefill(self.heads, split, tiles, rows, pairs))
    }

    /// Most tiles of prompt rows: each segment has one more than its queries fill, and none is
    /// shorter than 2 rows.
    pub(super) fn max_tiles(&self, limits: &StepLimits) -> usize {
        let runs = limits.segments.min(limits.rows / 2);
        (limits.rows * self.heads.group).div_ceil(TILE_QUERIES) + runs
    }

    /// Most totals of whole tiles in a launch of prompt attention, one for each block: none by
    /// wgmma, which has them in registers, and where no context has several partitions.
    fn totals(&self, limits: &StepLimits) -> usize {
        let plan = self.prefill(&PrefillSplit::WHOLE, self.max_tiles(limits), 2, 2);
        match is_wgmma_attention(&plan) || order::partitions(limits.context) == 1 {
            true => 0,
            false => (plan.grid[0] * plan.grid[1]) as usize,
        }
    }

    pub(super) fn workspaces(&self) -> Workspaces {
        let mut needed = Workspaces::default();
        let layer = self.layer.iter().flat_map(|of| of.products.all().map(|plan| *plan));
        for product in layer.chain(self.sampled.iter().map(|of| of.logits)) {
            needed.partials = needed.partials.max(product.partial_floats);
            needed.tile_counters = needed.tile_counters.max(product.tile_counters);
        }
        for decode in &self.decode {
            needed.partial_out = needed.partial_out.max(decode.partial_out);
            needed.partial_sums = needed.partial_sums.max(decode.partial_sums);
            needed.attention_counters = needed.attention_counters.max(decode.tile_counters);
        }
        let parts = PrefillSplit::max_parts(self.split_places).max(self.prefill_totals);
        let [out, sums] = PrefillSplit::workspace(parts, self.heads);
        needed.partial_out = needed.partial_out.max(out);
        needed.partial_sums = needed.partial_sums.max(sums);
        for of in &self.sampled {
            needed.weights = needed.weights.max(of.sampling.weights);
            needed.sums = needed.sums.max(of.sampling.sums);
            needed.team_sums = needed.team_sums.max(of.sampling.team_sums);
            needed.band = needed.band.max(of.sampling.band);
        }
        needed
    }

    /// Every kernel of a step, so that none is loaded while steps run, or are captured.
    pub(super) fn kernels(&self) -> impl Iterator<Item = LaunchPlan> + '_ {
        let layer = self.layer.iter().flat_map(|of| {
            let [qkv, o, gate_up, down] = of.products.all().map(|plan| plan.launch);
            [of.embed, qkv, o, gate_up, down]
        });
        let decode = self.decode.iter().map(|of| of.launch);
        let decode = decode.chain(self.megakernel.iter().flatten().map(|of| of.launch));
        let sampled = self.sampled.iter().flat_map(|of| {
            let [scan, weigh, choose] = of.sampling.launches;
            [of.logits.launch, scan, weigh, choose]
        });
        let cut = PrefillSplit { cut_tiles: 1, splits: 2 };
        let prefill = [PrefillSplit::WHOLE, cut].into_iter().flat_map(move |split| {
            let attend = self.prefill(&split, 1, 2, 2);
            [Some(attend), split.merge(self.heads)].into_iter().flatten()
        });
        layer.chain(decode).chain(sampled).chain(prefill)
    }
}

impl LayerPlans {
    fn new(chip: &Chip, config: &ModelConfig, rows: usize, order: OrderChoice) -> LayerPlans {
        let (d, q) = (config.hidden_size, config.q_size());
        let product = |epilogue, features, width| {
            let product = Product { epilogue, rows, features, width };
            best(chip, product, order)
        };
        LayerPlans {
            embed: step::embed(rows, d),
            products: Products {
                qkv: product(Epilogue::Qkv, q + 2 * config.kv_size(), d),
                o: product(Epilogue::Residual, d, q),
                gate_up: product(Epilogue::Swiglu, 2 * config.intermediate_size, d),
                down: product(Epilogue::Residual, d, config.intermediate_size),
            },
        }
    }
}

impl SampledPlans {
    fn new(chip: &Chip, config: &ModelConfig, rows: usize, order: OrderChoice) -> SampledPlans {
        let (features, width) = (config.vocab_size, config.hidden_size);
        let product = Product { epilogue: Epilogue::Logits, rows, features, width };
        SampledPlans {
            logits: best(chip, product, order),
            sampling: sampling(rows, features, team(chip, rows, features)),
        }
    }
}

/// Hopper's own product where it has one for so many rows; the portable one otherwise.
fn best(chip: &Chip, product: Product, choice: OrderChoice) -> GemmPlan {
    let orders = Order::choices(chip.target, product.features, product.width, choice);
    let own = hopper::gemm(chip, product, &orders);
    own.unwrap_or_else(|| gemm::gemm_in(chip, product, &orders))
}

/// Returns true if `plan` is attention by wgmma, which reads the KV pool through a tensor map.
pub(super) fn is_wgmma_attention(plan: &LaunchPlan) -> bool {
    plan.kernel.starts_with("attention_wgmma")
}

/// Returns true if `plan` is a wgmma product, which reads its rows through a tensor map.
pub(super) fn is_wgmma(plan: &GemmPlan) -> bool {
    plan.launch.kernel.starts_with("wgmma_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_step_has_plans_and_tiles() {
        let config = ModelConfig::named("llama3-8b").unwrap();
        let limits =
            StepLimits { rows: 2048, segments: 200, drafts: 32, requests: 1000, context: 8192 };
        let in_clusters = |plan: &GemmPlan| plan.launch.kernel.contains("_cluster_");
        for chip in [Chip::A100, Chip::H200] {
            let plans = Plans::new(&chip, &config, &limits, OrderChoice::Fixed, true);
            assert_eq!((plans.decode_sizes.last(), plans.sampled_rows.last()), (200, 232));
            let worst = plans.decode_sizes.at(plans.decode_sizes.index(193)) + limits.rows - 193;
            assert!(worst <= plans.rows.last());
            assert_eq!(plans.layer.len(), plans.rows.iter().len());
            let largest = &plans.layer[plans.layer.len() - 1].products;
            assert_eq!(is_wgmma(&largest.o), chip == Chip::H200);
            assert_eq!(in_clusters(&largest.o), chip == Chip::H200);
            assert!(!is_wgmma(&plans.layer[0].products.o));
            // Up to 64 rows stream their weights on any chip.
            let few = plans.layer[plans.rows.index(64)].products.o.launch.kernel;
            assert_eq!(few, "skinny_residual_64");
            let whole = PrefillSplit::WHOLE;
            let prefill = plans.prefill(&whole, 9, 200, 2000);
            assert_eq!(is_wgmma_attention(&prefill), chip == Chip::H200);
            // A short chunk behind a long context is cut.
            let short = PrefillSegment { first_row: 0, rows: 32, batch_idx: None, context: 8000 };
            assert!(plans.split(&[short], &[[0, 0]]).splits > 10);
            assert!(plans.kernels().any(|plan| plan.kernel == "attention_merge_hd128"));
            assert_eq!(plans.sampled[0].sampling.launches[2].grid, [32, 1, 1]);
            // Sizes 1, 2 and 4.
            assert_eq!(plans.megakernel.iter().flatten().count(), 3);
            assert!(plans.megakernel[..3].iter().all(Option::is_some));
            let plain = Plans::new(&chip, &config, &limits, OrderChoice::Fixed, false);
            assert!(plain.megakernel.iter().all(Option::is_none));
        }
        // Segments of one row more than fills a tile.
        let plans = Plans::new(&Chip::A100, &config, &limits, OrderChoice::Fixed, true);
        let tiles = 62 * (33 * 4usize).div_ceil(TILE_QUERIES);
        assert!(tiles <= plans.max_tiles(&limits));
    }

    /// Of any number of rows, unless the order is free.
    #[test]
    fn all_steps_sum_in_one_order() {
        let config = ModelConfig::named("llama3-8b").unwrap();
        let limits =
            StepLimits { rows: 2048, segments: 64, drafts: 8, requests: 64, context: 8192 };
        for chip in [Chip::A100, Chip::H200] {
            let orders = |choice| {
                let plans = Plans::new(&chip, &config, &limits, choice, true);
                let layers: Vec<_> =
                    plans.layer.iter().map(|of| of.products.all().map(|plan| plan.order)).collect();
                let logits = plans.sampled.iter().map(|of| of.logits.order);
                (layers, logits.collect::<Vec<_>>())
            };
            let (layers, logits) = orders(OrderChoice::Fixed);
            assert!(layers.iter().all(|of| of == &layers[0]));
            assert!(logits.iter().all(|of| of == &logits[0]));
            assert!(orders(OrderChoice::Free).0.iter().any(|of| of != &layers[0]));
        }
    }

    #[test]
    fn cooperative_launches_are_cut_to_what_the_device_holds_with_one_warning() {
        let config = ModelConfig::named("llama3-8b").unwrap();
        let limits = StepLimits { rows: 512, segments: 8, drafts: 0, requests: 8, context: 1024 };
        let fitted = |places| {
            let mut plans = Plans::new(&Chip::A100, &config, &limits, OrderChoice::Fixed, true);
            let warning = plans.fit_cooperative(|_| Ok(places)).unwrap();
            (plans, warning)
        };
        let (whole, none) = fitted(u32::MAX);
        let planned = whole.megakernel[0].unwrap().launch.grid[0];
        assert!(none.is_none() && planned > 5 && whole.sampled[0].sampling.launches[2].cooperative);
        let (cut, warning) = fitted(5);
        assert!(warning.unwrap().starts_with(&format!("the GPU holds 5 of {planned} blocks")));
        assert_eq!(cut.megakernel[0].unwrap().launch.grid[0], 5);
        let (left_out, _) = fitted(0);
        assert!(left_out.megakernel.iter().all(Option::is_none));
        assert!(left_out.kernels().all(|plan| !plan.cooperative));
    }
}
