//! One order of summing: a row's bits are those of the row alone, in every kernel, for any number
//! of rows, on every grid.

use std::collections::BTreeSet;
use trail_runtime::cuda::launch;
use trail_runtime::cuda::params::{GemmOperands, ResidualParams, WgmmaResidualParams};
use trail_runtime::cuda::plan::Chip;
use trail_runtime::cuda::plan::gemm::{Epilogue, GemmPlan, Product, gemm};
use trail_runtime::cuda::plan::hopper::wgmma;
use trail_test_support::cuda::{Address, Bench, Buffer, Chance};
use trail_test_support::gemm::{self as reference, Matrix};

const FEATURES: usize = 136;
/// Three pieces.
const WIDTH: usize = 1608;
const MAX_ROWS: usize = 257;

/// Operands of all rows.
struct Scene {
    x: Buffer,
    w: Buffer,
    gamma: Buffer,
    h: Vec<f32>,
}

impl Scene {
    fn new(bench: &Bench) -> Scene {
        let mut chance = Chance(11);
        let data = chance.bf16s(FEATURES * WIDTH, 1.0);
        let w = Matrix { data, rows: FEATURES, width: WIDTH };
        let padded = FEATURES.next_multiple_of(128);
        let order = reference::plain_order(FEATURES, padded);
        let fragments = reference::fragment_order(&w, &order, WIDTH.next_multiple_of(256));
        Scene {
            x: bench.input(&chance.bf16s(MAX_ROWS * WIDTH, 2.0)),
            w: bench.input(&fragments),
            gamma: bench.input(&chance.bf16s(FEATURES, 1.5)),
            h: (0..MAX_ROWS * FEATURES).map(|_| chance.unit() * 3.0).collect(),
        }
    }

    /// Bits of the first rows of the residual stream, of the next operand and of the sums of
    /// squares, by `plan`.
    fn rows(&mut self, bench: &Bench, plan: &GemmPlan) -> Vec<Vec<u16>> {
        let (rows, parts) = (plan.product.rows, plan.features / 128);
        let mut h = bench.changed(&self.h[..rows * FEATURES]);
        let mut x_next = bench.output(rows * FEATURES * 2);
        let mut ss = bench.output(rows * parts * 4);
        let mut partials = bench.raw(plan.partial_floats * 4);
        let mut tile_counters = bench.input(&vec![0u32; plan.tile_counters]);
        let base = ResidualParams {
            gemm: GemmOperands {
                x: self.x.at(bench),
                w: self.w.at(bench),
                partials: partials.at(bench),
                tile_counters: tile_counters.at(bench),
                ..GemmOperands::default()
            },
            h: h.at(bench),
            gamma: self.gamma.at(bench),
            x_next: x_next.at(bench),
            ss: ss.at(bench),
            ..ResidualParams::default()
        };
        // SAFETY: all buffers are as large as the plan says and live until the reads below.
        unsafe {
            let (device, stream) = (&bench.device, &bench.stream);
            if plan.launch.kernel.starts_with("wgmma") {
                let x = launch::activation_map(self.x.at(bench), rows, WIDTH).unwrap();
                let params = WgmmaResidualParams { x, base };
                device.launch(stream, &launch::wgmma_residual(plan, params)).unwrap();
            } else {
                device.launch(stream, &launch::residual(plan, base)).unwrap();
            }
        }
        let [h, x_next, ss] = [&h, &x_next, &ss].map(|out| bench.read::<u16>(out));
        let row = |row: usize| {
            let each = [(&h, 2 * FEATURES), (&x_next, FEATURES), (&ss, 2 * parts)];
            each.into_iter().flat_map(|(all, len)| all[row * len..][..len].to_vec()).collect()
        };
        (0..rows).map(row).collect()
    }
}

/// Plans of `rows` rows: of chips of one to many multiprocessors, and on Hopper all of wgmma's.
fn plans(chip: &Chip, rows: usize) -> Vec<GemmPlan> {
    let product = Product { epilogue: Epilogue::Residual, rows, features: FEATURES, width: WIDTH };
    let sized = |multiprocessors| Chip { multiprocessors, ..*chip };
    let mut plans: Vec<_> = [1, 3, 132].map(|count| gemm(&sized(count), product)).to_vec();
    if chip.target == Chip::H200.target {
        let all = [1, 4].into_iter().flat_map(|count| wgmma::candidates(&sized(count), product));
        plans.extend(all.map(|of| of.plan));
    }
    plans.dedup();
    plans
}

fn check(bench: &Bench, families: &[&str]) {
    let mut scene = Scene::new(bench);
    let mut alone: Vec<Vec<u16>> = Vec::new();
    let (mut kernels, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for rows in [MAX_ROWS, 1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256] {
        for plan in plans(bench.device.chip(), rows) {
            assert_eq!(plan.order.pieces, 3, "{}", plan.launch);
            let found = scene.rows(bench, &plan);
            if alone.is_empty() {
                alone = found;
            } else {
                let differs = (0..rows).find(|&row| found[row] != alone[row]);
                assert_eq!(differs, None, "{}: a row has other bits", plan.launch);
            }
            let name = plan.launch.kernel;
            kernels.insert(name);
            kinds.insert((name.split('_').next().unwrap(), plan.launch.splits > 1));
        }
    }
    // Every tile size of each family, and both ways to add pieces.
    for family in families {
        let all = super::kernels(&format!("{family}_residual"));
        assert!(all.is_subset(&kernels), "{kernels:?}");
        assert!(kinds.contains(&(family, true)), "{kinds:?}");
        assert!(*family == "skinny" || kinds.contains(&(family, false)), "{kinds:?}");
    }
}

#[test]
fn rows_have_their_bits_in_every_plan() {
    check(&Bench::open(), &["skinny", "tiled"]);
}

#[test]
fn rows_have_their_bits_in_every_plan_on_hopper() {
    let Some(bench) = Bench::hopper() else { return };
    check(&bench, &["skinny", "tiled", "wgmma"]);
}
