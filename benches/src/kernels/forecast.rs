//! Forecast of a kernel's time from its plan and the report of its machine code (SASS): bytes in
//! flight by Little's law, issue slots, latency chains, tensor cores, waves of blocks. It is a
//! model with the constants below, stated before any measurement, so that the first record of a GPU
//! shows where it is wrong: `bench kernels` prints it beside the times that it measures.
//! Instructions behind the last product of an iteration are left out: most are the end of a tile,
//! and run once a tile.

mod attention;
mod rates;
mod small;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trail_cli::{Error, notice};
use trail_platform::read::read_text;
use trail_ptx::Target;
use trail_runtime::cuda::plan::LaunchPlan;
use trail_runtime::cuda::plan::order::Order;
use trail_runtime::model::ModelConfig;

use super::{KernelsArgs, cases, share};
use rates::HMMA_FLOPS;
pub use rates::{ForecastChip, Rates};

/// Largest report of machine code, MiB.
const MAX_REPORT_MIB: u64 = 64;

/// Figures of a kernel's machine code that the model reads; docs are at the manifest's fields.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Sass {
    /// Reports of older machine code lack it.
    #[serde(default)]
    instructions: f64,
    hmma: f64,
    hgmma: f64,
    lead: f64,
    span: f64,
    gap: f64,
    ldsm: f64,
    zero_waits: u32,
    #[serde(default)]
    mufu: f64,
    pending_groups: f64,
    fences: f64,
}

/// Bytes of a group of copies of the skinny kernels: a block's weights, 16 deep.
const GROUP_BYTES: f64 = 4.0 * 1024.0;
/// Features of a tile of every product.
const FEATURES: f64 = 128.0;
/// Clocks of a warp's special functions (MUFU) on one scheduler: 16 a clock and multiprocessor.
const MUFU_CLOCKS: f64 = 8.0;
/// Warpgroups of a wgmma block that multiply; the third loads.
const CONSUMERS: f64 = 2.0;
/// Clocks of an instruction where the warps of a scheduler wait for the same thing: a lump of 333
/// instructions of the tiled product's first version held up 774 (its stall counts).
const STALL: f64 = 2.3;
/// The same in a warp's chain of dependent loads, products and reductions (decode attention: 371
/// instructions in about 1,250 clocks).
const CHAIN: f64 = 3.4;
/// Exponent of the sum of overlapping times: with an infinite one they overlap perfectly; 3 makes
/// two equal times cost a quarter more than one. Judgement.
const OVERLAP: f64 = 3.0;
/// Latency of memory that has little else to do, as a share of that under load; judgement.
const IDLE_LATENCY: f64 = 0.6;
/// Seconds that a fence of the device takes with the atomic beside it; judgement.
const FENCE_S: f64 = 0.3e-6;
/// Seconds to read the sums of other blocks; judgement.
const PARTS_S: f64 = 0.5e-6;
/// Splits of attention whose sums are read at one time.
const MERGED: f64 = 8.0;

/// A forecast of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Forecast {
    /// Time, seconds.
    pub seconds: f64,
    /// The largest of the overlapping times: what to mend first.
    pub limited_by: &'static str,
}

/// How blocks share the tiles of a product.
struct Shares {
    /// Blocks, and those that a multiprocessor holds at one time.
    grid: f64,
    resident: f64,
    /// Tiles, or pieces of tiles, and rounds in which the blocks take them.
    parts: f64,
    rounds: f64,
}

impl Shares {
    /// Of a product's `iterations`, those of the busiest of `multiprocessors`: of all its blocks,
    /// and one after another.
    fn busiest(&self, iterations: f64, multiprocessors: f64, streams: bool) -> (f64, f64) {
        let Shares { grid, resident, parts, rounds } = *self;
        if streams {
            let each = iterations / grid;
            return (each * (grid / multiprocessors).ceil(), each * rounds);
        }
        // In the last round a multiprocessor may have fewer blocks.
        let rest = (parts - (rounds - 1.0) * grid) / multiprocessors;
        let part = iterations / parts;
        (part * ((rounds - 1.0) * resident + rest.ceil().min(resident)), part * rounds)
    }
}

/// Forecasts launches on one chip with one set of machine code.
#[derive(Clone, Debug)]
pub struct Forecaster {
    rates: Rates,
    code: BTreeMap<String, Sass>,
}

impl Forecaster {
    /// With the machine code in the manifest.
    pub fn new(rates: Rates) -> Result<Forecaster, String> {
        let manifest: Value = serde_json::from_str(trail_ptx::MANIFEST)
            .map_err(|error| format!("manifest.json: {error}"))?;
        let target = rates.chip.target.unwrap_or(Target::Sm80).name();
        let mut reports = Map::new();
        for module in manifest["modules"].as_object().into_iter().flat_map(Map::values) {
            for (kernel, entry) in module["entries"].as_object().into_iter().flatten() {
                if let Some(sass) = entry["sass"].get(target) {
                    reports.insert(kernel.clone(), sass.clone());
                }
            }
        }
        Forecaster::with_reports(rates, Value::Object(reports))
    }

    /// With other machine code: `reports` by target, as `compile --report` prints them.
    pub fn with_other(rates: Rates, reports: &Value) -> Result<Forecaster, String> {
        let target = rates.chip.target.unwrap_or(Target::Sm80).name();
        match reports.get(target) {
            Some(reports) => Forecaster::with_reports(rates, reports.clone()),
            None => Err(format!("no reports for {target}: make them by compile --report")),
        }
    }

    fn with_reports(rates: Rates, reports: Value) -> Result<Forecaster, String> {
        let code = serde_json::from_value(reports).map_err(|error| error.to_string())?;
        Ok(Forecaster { rates, code })
    }

    /// The forecast of an op's launches, one after another: `op` is a case's name, and says how a
    /// sampler's rows choose. `None` where one of the kernels is not forecast.
    pub fn op(&self, op: &str, plans: &[LaunchPlan], rows: usize) -> Option<Forecast> {
        let known = plans.iter().all(|plan| self.code.contains_key(plan.kernel));
        if let Some(truncates) = small::truncates(op) {
            return known.then(|| small::sampling(&self.rates, plans, truncates));
        }
        let all: Option<Vec<Forecast>> = plans.iter().map(|plan| self.launch(plan, rows)).collect();
        let all = all?;
        let longest = all.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
        Some(Forecast { seconds: all.iter().map(|of| of.seconds).sum(), ..*longest })
    }

    /// The forecast of `plan` for `rows` rows; `None` for kernels that the model does not know: the
    /// sampler's, which [`Forecaster::op`] knows, and the probe's.
    pub fn launch(&self, plan: &LaunchPlan, rows: usize) -> Option<Forecast> {
        if self.code.contains_key(plan.kernel)
            && let Some(forecast) = small::launch(&self.rates, plan)
        {
            return Some(forecast);
        }
        let sass = self.report(plan.kernel)?;
        let (kind, _) = plan.kernel.split_once('_')?;
        match kind {
            "skinny" | "tiled" | "wgmma" => Some(self.product(plan, sass, rows)),
            "attention" if plan.kernel.starts_with("attention_decode") => {
                Some(self.attention_decode(plan, sass))
            }
            "attention" if sass.hgmma > 0.0 => Some(self.attention_wgmma(plan, sass)),
            "attention" => Some(self.attention_prefill(plan, sass)),
            _ => None,
        }
    }

    /// Returns true if `kernel` is of a kind that is forecast, and there is no report of it.
    fn lacks(&self, kernel: &str) -> bool {
        let products = ["skinny_", "tiled_", "wgmma_"];
        let others = ["attention_", "sample_", "embed", "tap_mean"];
        let mut kinds = products.iter().chain(&others);
        kinds.any(|kind| kernel.starts_with(kind)) && !self.code.contains_key(kernel)
    }

    /// The report of `kernel`; `None` if there is none, or none with products.
    fn report(&self, kernel: &str) -> Option<&Sass> {
        self.code.get(kernel).filter(|sass| sass.hmma + sass.hgmma > 0.0)
    }

    fn product(&self, plan: &LaunchPlan, sass: &Sass, rows: usize) -> Forecast {
        let Rates { chip, clock_hz, hmma_clocks, l2_bytes_per_clock, .. } = self.rates;
        let tokens: f64 = plan
            .kernel
            .rsplit('_')
            .next()
            .and_then(|text| text.parse().ok())
            .expect("a product's kernel ends with the tokens of its tile");
        let multiprocessors = f64::from(chip.multiprocessors);
        let warps = f64::from(plan.block / 32);
        let shares = self.shares(plan, rows, tokens);
        let streams = plan.kernel.starts_with("skinny");
        // An iteration of the hot loop: work of a block, and clocks of its products.
        let is_wgmma = sass.hgmma > 0.0;
        let (iteration_flops, product_clocks) = if is_wgmma {
            let flops = sass.hgmma * CONSUMERS * 2.0 * 64.0 * tokens * 16.0;
            (flops, flops / self.rates.matrix_flops_per_clock())
        } else {
            (sass.hmma * HMMA_FLOPS * warps, sass.hmma * hmma_clocks * warps / 4.0)
        };
        let depth = iteration_flops / (2.0 * FEATURES * tokens);
        let weights = FEATURES * depth * 2.0;
        let padded = plan.flops as f64 / rows as f64 * (rows as f64 / tokens).ceil() * tokens;
        let iterations = padded / iteration_flops;
        let (all, serial) = shares.busiest(iterations, multiprocessors, streams);
        // Blocks that stream weights share the memory's rate, however many a multiprocessor has.
        let imbalance = if streams { 1.0 } else { all * multiprocessors / iterations };
        let chain = if sass.zero_waits > 0 && streams {
            // The loads of an iteration land before its products begin.
            serial * ((self.rates.latency_s * clock_hz).max(STALL * sass.gap) + product_clocks)
        } else if is_wgmma {
            all * product_clocks
        } else {
            all * product_clocks + serial * STALL * sass.gap
        };
        let in_flight = if is_wgmma {
            // The ring's share of weights; the rest is activations.
            f64::from(plan.shared_bytes) * FEATURES / (FEATURES + tokens)
        } else if streams && sass.zero_waits == 0 {
            sass.pending_groups * GROUP_BYTES
        } else {
            f64::INFINITY
        };
        // The blocks of a cluster, columns of the grid, read their activations once.
        let readers = f64::from(plan.grid[1]);
        let l2 = (weights + tokens * depth * 2.0 / readers) / l2_bytes_per_clock;
        let read = imbalance.max(1.0) * plan.bytes as f64 / self.rates.read_bytes_per_s;
        let issue = if is_wgmma { 0.0 } else { all * warps / 4.0 * (sass.lead + sass.span) };
        let terms = [
            ("read bandwidth", read),
            ("products and what holds them up", chain / clock_hz),
            ("bytes in flight", serial * weights / in_flight * self.rates.latency_s),
            ("issue slots", issue / clock_hz),
            ("L2", all * l2 / clock_hz),
        ];
        // The sums of a tile end while its block multiplies nothing.
        let ends = if is_wgmma { self.epilogue_s(plan, rows) } else { 0.0 };
        let carried = shares.rounds * self.carry_s(plan, tokens) * shares.resident;
        self.total(&terms, self.edge_s(plan, sass) + ends + carried)
    }

    /// How the blocks of a product share its tiles of `tokens` tokens.
    fn shares(&self, plan: &LaunchPlan, rows: usize, tokens: f64) -> Shares {
        let chip = &self.rates.chip;
        let multiprocessors = f64::from(chip.multiprocessors);
        let grid = f64::from(plan.grid[0] * plan.grid[1]);
        let fit = f64::from(plan.resident(chip));
        let features = plan.shape.extent("features").unwrap_or(1) as f64;
        let tiles = (features / FEATURES).ceil() * (rows as f64 / tokens).ceil();
        let parts = tiles * f64::from(plan.splits);
        // Few rows have a block for each part, more a block for several.
        let streams = plan.kernel.starts_with("skinny");
        let rounds = if streams { grid / (multiprocessors * fit) } else { parts / grid };
        let resident = fit.min((grid / multiprocessors).ceil());
        Shares { grid, resident, parts, rounds: rounds.ceil() }
    }

    /// Seconds in which a block that has all pieces of a tile writes totals to L2 and reads them.
    fn carry_s(&self, plan: &LaunchPlan, tokens: f64) -> f64 {
        let extent = |name| plan.shape.extent(name).unwrap_or(1) as usize;
        let target = self.rates.chip.target;
        let pieces = Order::of(target, extent("features"), extent("width")).pieces;
        let carried = if plan.splits > 1 { 0 } else { pieces - 1 };
        let bytes = carried as f64 * 2.0 * tokens * FEATURES * 4.0;
        bytes / self.rates.l2_bytes_per_clock / self.rates.clock_hz
    }

    /// Seconds that a product's epilogue moves bytes: all but weights and activations.
    fn epilogue_s(&self, plan: &LaunchPlan, rows: usize) -> f64 {
        let width = plan.shape.extent("width").unwrap_or(0) as f64;
        let operands = plan.flops as f64 / rows as f64 + rows as f64 * width * 2.0;
        (plan.bytes as f64 - operands).max(0.0) / self.rates.read_bytes_per_s
    }

    /// Returns true if the launch may begin before its predecessor has ended.
    fn overlaps(&self, plan: &LaunchPlan) -> bool {
        plan.overlaps && self.rates.chip.target == Some(Target::Sm90a)
    }

    /// Seconds around the main loop: the launch, and the fix-up where blocks share tiles.
    fn edge_s(&self, plan: &LaunchPlan, sass: &Sass) -> f64 {
        let launch =
            if plan.overlaps { self.rates.overlapped_launch_s } else { self.rates.launch_s };
        // Split prefill attention leaves the sum to a separate launch.
        let fixes_up = plan.splits > 1 && !plan.kernel.contains("_split_");
        let fix_up = if fixes_up { PARTS_S + sass.fences * FENCE_S } else { 0.0 };
        launch + fix_up
    }

    fn total(&self, terms: &[(&'static str, f64)], edge: f64) -> Forecast {
        let (limited_by, largest) = terms
            .iter()
            .copied()
            .fold(("", 0.0), |max, term| if term.1 > max.1 { term } else { max });
        let overlapped = terms.iter().map(|(_, time)| (time / largest).powf(OVERLAP)).sum::<f64>();
        Forecast { seconds: largest * overlapped.powf(OVERLAP.recip()) + edge, limited_by }
    }
}

/// The forecast of every case, and of whole steps.
pub fn all(args: &KernelsArgs, chip: ForecastChip, config: &ModelConfig) -> Result<Value, Error> {
    let rates = chip.rates();
    let forecaster = match &args.sass {
        None => Forecaster::new(rates)?,
        Some(path) => {
            let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let text = read_text(path, MAX_REPORT_MIB).map_err(|error| named(&error))?;
            let reports = serde_json::from_str(&text).map_err(|error| named(&error))?;
            Forecaster::with_other(rates, &reports).map_err(|error| named(&error))?
        }
    };
    let (mut rows, mut missing) = (Vec::new(), BTreeSet::new());
    for case in cases(args, config, &rates.chip) {
        let plans = case.launches();
        let Some(forecast) = forecaster.op(case.op(), &plans, case.rows()) else {
            let lacking = plans.iter().filter(|plan| forecaster.lacks(plan.kernel));
            missing.extend(lacking.map(|plan| plan.kernel));
            continue;
        };
        if plans[0].kernel.contains(&args.kernel) {
            let us = forecast.seconds * 1e6;
            let (limit, share) = share(&plans, us, rates.read_gb_per_s(), rates.tflops(&plans[0]));
            rows.push(json!({
                "op": case.op(),
                "kernel": plans[0].kernel,
                "extents": plans[0].shape.to_string(),
                "rows": case.rows(),
                "context": case.context(),
                "us": { "forecast": us },
                "limit": limit,
                "share": share,
                "limited_by": forecast.limited_by,
            }));
        }
    }
    if args.kernel.is_empty() {
        rows.extend(steps::all(&forecaster, config, &args.rows));
    }
    if !missing.is_empty() {
        let names: Vec<&str> = missing.into_iter().collect();
        notice(format_args!("left out, for want of a report: {}", names.join(", ")));
    }
    if rows.is_empty() {
        return Err(Error::usage("no kernel of this shape with such a name has a forecast"));
    }
    Ok(json!({ "forecast_for": chip.name(), "shape": args.shape, "rows": rows }))
}

#[cfg(test)]
mod tests;
