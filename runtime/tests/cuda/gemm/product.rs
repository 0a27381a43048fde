//! A random product on the device: operands, plan, workspace.

use half::bf16;
use trail_ptx::DevicePtr;
use trail_runtime::cuda::launch::activation_map;
use trail_runtime::cuda::params::{GemmOperands, RowScale, TensorMap};
use trail_runtime::cuda::plan::bench::ladder::{self, Rung};
use trail_runtime::cuda::plan::gemm::{Epilogue, GemmPlan, Product, gemm};
use trail_runtime::cuda::plan::hopper::wgmma;
use trail_runtime::cuda::plan::{Chip, LaunchPlan};
use trail_test_support::cuda::{Address, Bench, Buffer, Chance};
use trail_test_support::gemm::{self as reference, Matrix};

/// The case of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) epilogue: Epilogue,
    pub(crate) rows: usize,
    pub(crate) features: usize,
    pub(crate) width: usize,
    /// As many as the plan is made for.
    pub(crate) multiprocessors: u32,
    /// (width of a head, query heads, key/value heads), of qkv.
    pub(crate) heads: (usize, usize, usize),
    /// Positions are below this.
    pub(crate) positions: usize,
    pub(crate) family: Family,
}

/// Which kernels compute a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// The planner's choice.
    Planned,
    /// A rung of the ladder; logits only.
    Ladder(Rung),
    /// Hopper's of many rows, not logits, with a block for each piece of a tile or for all.
    Group { piece_per_block: bool },
    /// The same in clusters.
    Clusters { piece_per_block: bool },
}

impl Case {
    pub(crate) fn new(epilogue: Epilogue, rows: usize, features: usize, width: usize) -> Case {
        let (heads, family) = ((64, 1, 1), Family::Planned);
        Case { epilogue, rows, features, width, multiprocessors: 4, heads, positions: 4096, family }
    }

    pub(crate) fn heads(rows: usize, head_dim: usize, heads: usize, kv_heads: usize) -> Case {
        let features = (heads + 2 * kv_heads) * head_dim;
        Case { heads: (head_dim, heads, kv_heads), ..Case::new(Epilogue::Qkv, rows, features, 264) }
    }

    /// A shape that fills neither tiles nor units, planned for a chip of any size.
    pub(crate) fn random(chance: &mut Chance, epilogue: Epilogue, rows: usize) -> Case {
        let width = 8 * (1 + chance.below(80));
        let multiprocessors = 1 + chance.below(6) as u32;
        let base = match epilogue {
            Epilogue::Qkv => {
                let head_dim = [64, 128][chance.below(2)];
                let kv_heads = 1 + chance.below(2);
                Case::heads(rows, head_dim, kv_heads * (1 + chance.below(3)), kv_heads)
            }
            Epilogue::Swiglu => Case::new(epilogue, rows, 16 * (1 + chance.below(20)), width),
            _ => Case::new(epilogue, rows, 8 * (1 + chance.below(40)), width),
        };
        Case { width, multiprocessors, ..base }
    }

    pub(crate) fn plan(&self, bench: &Bench) -> GemmPlan {
        let Case { epilogue, rows, features, width, multiprocessors, .. } = *self;
        let chip = Chip { multiprocessors, ..*bench.device.chip() };
        let product = Product { epilogue, rows, features, width };
        match self.family {
            Family::Planned => gemm(&chip, product),
            Family::Ladder(rung) => ladder::gemm(rung, rows, features, width),
            Family::Group { piece_per_block } => own(&chip, product, 1, piece_per_block),
            Family::Clusters { piece_per_block } => own(&chip, product, 2, piece_per_block),
        }
    }
}

/// The operands of a case, on both sides.
pub(crate) struct Setup {
    pub(crate) plan: GemmPlan,
    /// The plan that is to have its bits: itself, or that without clusters.
    pub(crate) second: GemmPlan,
    /// Activations `[source rows, width]`.
    pub(crate) x: Matrix,
    /// Weights `[features, width]`.
    pub(crate) w: Matrix,
    /// Source row of each row.
    pub(crate) source: Vec<usize>,
    /// Partial sums of squares `[source rows, parts]`.
    pub(crate) ss: Vec<f32>,
    pub(crate) parts: usize,
    pub(crate) device: DeviceSide,
}

/// Buffers on the device.
pub(crate) struct DeviceSide {
    x: Buffer,
    w: Buffer,
    row_list: Option<Buffer>,
    partials: Buffer,
    pub(crate) tile_counters: Buffer,
    ss: Buffer,
    /// Of `x`, for Hopper's kernels.
    pub(crate) map: Option<TensorMap>,
}

pub(crate) const EPS: f32 = 1e-5;

impl Setup {
    /// Random operands; `order` lays the weights' rows out, padded to the number it is given.
    pub(crate) fn new(
        bench: &Bench,
        chance: &mut Chance,
        case: &Case,
        order: impl Fn(usize) -> Vec<Option<usize>>,
    ) -> Setup {
        let Case { epilogue, rows, features, width, .. } = *case;
        let plan = case.plan(bench);
        let second = match case.family {
            Family::Clusters { .. } => without_clusters(&plan),
            _ => plan,
        };
        // Logits gather their rows from more than there are.
        let source_rows = if epilogue == Epilogue::Logits { rows + 5 } else { rows };
        let x = Matrix { data: chance.bf16s(source_rows * width, 2.0), rows: source_rows, width };
        let scale = 1.0 / (width as f32).sqrt();
        let w = Matrix { data: chance.bf16s(features * width, scale), rows: features, width };
        let source: Vec<usize> = if epilogue == Epilogue::Logits {
            (0..rows).map(|_| chance.below(source_rows)).collect()
        } else {
            (0..rows).collect()
        };
        let parts = 1 + chance.below(5);
        let ss: Vec<f32> =
            (0..source_rows * parts).map(|_| (chance.unit() + 1.1) * width as f32).collect();
        let list: Vec<i32> = source.iter().map(|&row| row as i32).collect();
        let fragments = reference::fragment_order(&w, &order(plan.features), plan.width);
        let mut x_on = bench.input(&x.data);
        let map = matches!(case.family, Family::Group { .. } | Family::Clusters { .. })
            .then(|| activation_map(x_on.at(bench), rows, width).unwrap());
        let device = DeviceSide {
            x: x_on,
            w: bench.input(&fragments),
            row_list: (epilogue == Epilogue::Logits).then(|| bench.input(&list)),
            partials: bench.raw(plan.partial_floats * 4),
            tile_counters: bench.input(&vec![0u32; plan.tile_counters]),
            ss: bench.input(&ss),
            map,
        };
        Setup { plan, second, x, w, source, ss, parts, device }
    }

    pub(crate) fn operands(&mut self, bench: &Bench) -> GemmOperands {
        GemmOperands {
            x: self.device.x.at(bench),
            w: self.device.w.at(bench),
            row_list: self.device.row_list.as_mut().map_or(DevicePtr::NULL, |list| list.at(bench)),
            partials: self.device.partials.at(bench),
            tile_counters: self.device.tile_counters.at(bench),
            ..GemmOperands::default()
        }
    }

    pub(crate) fn row_scale(&mut self, bench: &Bench) -> RowScale {
        let (parts, width) = (self.parts as i32, self.x.width as i32);
        RowScale { ss: self.device.ss.at(bench), parts, width, eps: EPS, reserved: 0 }
    }

    /// Activations of row `row` of the product.
    pub(crate) fn row(&self, row: usize) -> &[bf16] {
        self.x.row(self.source[row])
    }

    /// The scale of row `row` of the product.
    pub(crate) fn scale(&self, row: usize) -> f64 {
        let ss = &self.ss[self.source[row] * self.parts..][..self.parts];
        reference::row_scale(ss, self.x.width, EPS)
    }

    /// Fails unless all counters are back at zero.
    pub(crate) fn check_arrivals(&self, bench: &Bench) {
        let left: Vec<u32> = bench.read_raw(&self.device.tile_counters);
        assert!(left.iter().all(|&count| count == 0), "{}: counters {left:?}", self.plan.launch);
    }
}

/// Hopper's plan of the smallest tile that holds all rows, in columns of so many blocks, each with
/// one piece of a tile or with all. Where there is one piece it is the same.
fn own(chip: &Chip, product: Product, columns: u32, piece_per_block: bool) -> GemmPlan {
    let all = wgmma::candidates(chip, product).into_iter().map(|of| of.plan);
    let fits = |plan: &GemmPlan| plan.launch.grid[1] == columns;
    let mut all: Vec<_> = all.filter(fits).collect();
    let tokens = if product.rows > 128 { "_256" } else { "_128" };
    all.retain(|plan| plan.launch.kernel.ends_with(tokens));
    *if piece_per_block { all.last() } else { all.first() }.expect("a plan")
}

/// The plan with the kernel that has no clusters.
fn without_clusters(plan: &GemmPlan) -> GemmPlan {
    let (epilogue, tokens) = plan.launch.kernel.split_once("_cluster_").expect("in clusters");
    let (_, entry) = trail_ptx::find(&format!("{epilogue}_{tokens}")).expect("its kernel");
    GemmPlan { launch: LaunchPlan { kernel: entry.name, ..plan.launch }, ..*plan }
}
