//! One case of one epilogue: launched twice on poisoned outputs, and in clusters once more without,
//! the bits compared with each other and with the expected.

use super::product::{Case, EPS, Setup};
use half::bf16;
use trail_ptx::DevicePtr;
use trail_runtime::backend::BLOCK_TOKENS;
use trail_runtime::cuda::launch;
use trail_runtime::cuda::params::{self, LogitsParams, QkvParams, ResidualParams, SwigluParams};
use trail_runtime::cuda::params::{WgmmaQkvParams, WgmmaResidualParams, WgmmaSwigluParams};
use trail_runtime::cuda::plan::gemm::{Epilogue, GemmPlan};
use trail_runtime::model::{RopeConfig, RopeScaling};
use trail_test_support::cuda::{Address, Bench, Buffer, Chance, Output};
use trail_test_support::gemm::{self as reference, Near};

/// The name of the kernel that was checked.
pub(crate) fn check(bench: &Bench, chance: &mut Chance, case: &Case) -> &'static str {
    match case.epilogue {
        Epilogue::Qkv => qkv(bench, chance, case),
        Epilogue::Residual => residual(bench, chance, case),
        Epilogue::Swiglu => swiglu(bench, chance, case),
        Epilogue::Logits => logits(bench, chance, case),
    }
}

/// Fails unless every found value is near its expected's.
fn compare(
    what: &str,
    setup: &Setup,
    row: usize,
    expected: &[Near],
    found: impl Iterator<Item = f64>,
) {
    let mut count = 0;
    for (i, (near, found)) in expected.iter().zip(found).enumerate() {
        let plan = setup.plan.launch;
        assert!(near.holds(found), "{plan}: {what}[{row}, {i}] = {found}, expected {near:?}");
        count += 1;
    }
    assert_eq!(count, expected.len());
}

fn wide(values: &[bf16]) -> impl Iterator<Item = f64> + '_ {
    values.iter().map(|value| f64::from(value.to_f32()))
}

/// Runs `launch` on fresh outputs twice, the second time by the plan that is to have the same bits.
fn twice<T: PartialEq>(setup: &Setup, mut launch: impl FnMut(&GemmPlan) -> T) -> T {
    let first = launch(&setup.plan);
    let second = launch(&setup.second);
    assert!(first == second, "{}: not the bits of {}", setup.plan.launch, setup.second.launch);
    first
}

fn logits(bench: &Bench, chance: &mut Chance, case: &Case) -> &'static str {
    let mut setup =
        Setup::new(bench, chance, case, |padded| reference::plain_order(case.features, padded));
    let (gemm, scale) = (setup.operands(bench), setup.row_scale(bench));
    let padded = setup.plan.features;
    let found = twice(&setup, |plan| {
        let mut out = bench.output(case.rows * padded * 4);
        let params = LogitsParams { gemm, scale, logits: out.at(bench) };
        let launch = launch::logits(plan, params);
        // SAFETY: all buffers are as large as the plan says and live until the read below.
        unsafe { bench.device.launch(&bench.stream, &launch) }.unwrap();
        bench.read::<u32>(&out)
    });
    for row in 0..case.rows {
        let expected = reference::logits(setup.row(row), &setup.w, setup.scale(row));
        let found = found[row * padded..].iter().map(|&bits| f64::from(f32::from_bits(bits)));
        compare("logits", &setup, row, &expected, found.take(case.features));
    }
    setup.check_arrivals(bench);
    setup.plan.launch.kernel
}

fn swiglu(bench: &Bench, chance: &mut Chance, case: &Case) -> &'static str {
    let ff = case.features / 2;
    let mut setup =
        Setup::new(bench, chance, case, |padded| reference::alternating_order(ff, padded));
    let (gemm, scale) = (setup.operands(bench), setup.row_scale(bench));
    let found = twice(&setup, |plan| {
        let mut out = bench.output(case.rows * ff * 2);
        let base = SwigluParams { gemm, scale, out: out.at(bench), ..SwigluParams::default() };
        // SAFETY: as above.
        unsafe {
            let (device, stream) = (&bench.device, &bench.stream);
            match setup.device.map {
                None => device.launch(stream, &launch::swiglu(plan, base)),
                Some(x) => {
                    let params = WgmmaSwigluParams { x, base };
                    device.launch(stream, &launch::wgmma_swiglu(plan, params))
                }
            }
            .unwrap();
        }
        bench.read::<u16>(&out)
    });
    let found = halves(&found);
    for row in 0..case.rows {
        let expected = reference::swiglu(setup.row(row), &setup.w, setup.scale(row));
        compare("swiglu", &setup, row, &expected, wide(&found[row * ff..][..ff]));
    }
    setup.check_arrivals(bench);
    setup.plan.launch.kernel
}

fn residual(bench: &Bench, chance: &mut Chance, case: &Case) -> &'static str {
    let (rows, d) = (case.rows, case.features);
    let mut setup = Setup::new(bench, chance, case, |padded| reference::plain_order(d, padded));
    let h: Vec<f32> = (0..rows * d).map(|_| chance.unit() * 3.0).collect();
    let gamma = chance.bf16s(d, 1.5);
    // A third of the rows is tapped, each into its own stage row.
    let places = chance.permutation(rows);
    let tapped = |row: usize| chance_third(row).then(|| places[row]);
    let tap_row: Vec<i32> = (0..rows).map(|row| tapped(row).map_or(-1, |at| at as i32)).collect();
    let (mut gamma_on, mut tap_row_on) = (bench.input(&gamma), bench.input(&tap_row));
    let gemm = setup.operands(bench);
    let parts = setup.plan.features / 128;
    let found = twice(&setup, |plan| {
        let mut h_on = bench.changed(&h);
        let mut x_next = bench.output(rows * d * 2);
        let mut ss = bench.output(rows * parts * 4);
        let mut tap = bench.output(rows * d * 2);
        let base = ResidualParams {
            gemm,
            h: h_on.at(bench),
            gamma: gamma_on.at(bench),
            x_next: x_next.at(bench),
            ss: ss.at(bench),
            tap_row: tap_row_on.at(bench),
            tap: tap.at(bench),
            ..ResidualParams::default()
        };
        // SAFETY: as above.
        unsafe {
            let (device, stream) = (&bench.device, &bench.stream);
            match setup.device.map {
                None => device.launch(stream, &launch::residual(plan, base)),
                Some(x) => {
                    let params = WgmmaResidualParams { x, base };
                    device.launch(stream, &launch::wgmma_residual(plan, params))
                }
            }
            .unwrap();
        }
        let read = |out: &Output| bench.read::<u16>(out);
        (read(&h_on), read(&x_next), read(&ss), read(&tap))
    });
    let floats = |bits: &[u16]| -> Vec<f64> {
        bits.chunks(2)
            .map(|two| f64::from(f32::from_bits(u32::from(two[0]) | u32::from(two[1]) << 16)))
            .collect()
    };
    let (h_found, ss_found) = (floats(&found.0), floats(&found.2));
    let (x_found, tap_found) = (halves(&found.1), halves(&found.3));
    for row in 0..rows {
        let expected = reference::residual(setup.row(row), &setup.w, &h[row * d..][..d], &gamma);
        compare("h", &setup, row, &expected.h, h_found[row * d..][..d].iter().copied());
        compare("x_next", &setup, row, &expected.x_next, wide(&x_found[row * d..][..d]));
        compare("ss", &setup, row, &expected.ss, ss_found[row * parts..][..parts].iter().copied());
        let stage = &tap_found[places[row] * d..][..d];
        if chance_third(row) {
            let expected: Vec<Near> = expected.h.iter().map(|near| near.rounded()).collect();
            compare("tap", &setup, row, &expected, wide(stage));
        } else {
            assert!(
                stage.iter().all(|value| value.to_bits() == 0xffff),
                "row {row} was not tapped"
            );
        }
    }
    setup.check_arrivals(bench);
    setup.plan.launch.kernel
}

fn halves(bits: &[u16]) -> Vec<bf16> {
    bits.iter().map(|&bits| bf16::from_bits(bits)).collect()
}

/// Every third row.
fn chance_third(row: usize) -> bool {
    row % 3 == 1
}

/// Where the rows of a step live: block tables in random order, a few padding rows.
struct Pages {
    position: Vec<i32>,
    batch_idx: Vec<i32>,
    table: Vec<i32>,
    max_blocks: usize,
    blocks: usize,
}

impl Pages {
    fn new(chance: &mut Chance, case: &Case) -> Pages {
        let max_blocks = case.positions.div_ceil(BLOCK_TOKENS);
        let blocks = case.rows + 3;
        // One block of the pool a row, all different; rows of one batch slot would do as well, but
        // could collide.
        let free = chance.permutation(blocks);
        let mut table = vec![-7; case.rows * max_blocks];
        let (mut position, mut batch_idx) = (Vec::new(), Vec::new());
        for row in 0..case.rows {
            let at = case.positions - 1 - chance.below(case.positions.min(5000));
            position.push(at as i32);
            batch_idx.push(if row % 5 == 3 { -1 } else { row as i32 });
            table[row * max_blocks + at / BLOCK_TOKENS] = free[row] as i32;
        }
        Pages { position, batch_idx, table, max_blocks, blocks }
    }
}

fn launch_qkv(bench: &Bench, setup: &Setup, plan: &GemmPlan, base: QkvParams) {
    let (device, stream) = (&bench.device, &bench.stream);
    // SAFETY: all buffers are as large as the plan says; the caller reads the outputs, which waits.
    unsafe {
        match setup.device.map {
            None => device.launch(stream, &launch::qkv(plan, base)),
            Some(x) => device.launch(stream, &launch::wgmma_qkv(plan, WgmmaQkvParams { x, base })),
        }
    }
    .unwrap();
}

/// True if all values are the poison of a fresh output.
fn is_untouched(values: &[bf16]) -> bool {
    values.iter().all(|value| value.to_bits() == 0xffff)
}

/// Bias and norms by the number of rows: none, one of the two, or both.
fn head_terms(chance: &mut Chance, case: &Case, eps: f32) -> reference::HeadTerms {
    let (head_dim, heads, kv_heads) = case.heads;
    let mut vector = |is_there: bool, len: usize| chance.bf16s(if is_there { len } else { 0 }, 2.0);
    let (has_bias, has_norms) = (case.rows % 4 % 2 == 1, case.rows % 4 >= 2);
    reference::HeadTerms {
        bias: vector(has_bias, (heads + 2 * kv_heads) * head_dim),
        q_norm: vector(has_norms, head_dim),
        k_norm: vector(has_norms, head_dim),
        eps,
    }
}

/// The device's addresses of `terms`, whose vectors are in `buffers`.
fn addresses(
    bench: &Bench,
    terms: &reference::HeadTerms,
    buffers: &mut [Buffer; 3],
) -> params::HeadTerms {
    let [bias, q_norm, k_norm] = buffers;
    let at = |vector: &[bf16], buffer: &mut Buffer| {
        if vector.is_empty() { DevicePtr::NULL } else { buffer.at(bench) }
    };
    params::HeadTerms {
        bias: at(&terms.bias, bias),
        q_norm: at(&terms.q_norm, q_norm),
        k_norm: at(&terms.k_norm, k_norm),
    }
}

fn qkv(bench: &Bench, chance: &mut Chance, case: &Case) -> &'static str {
    let (head_dim, heads, kv_heads) = case.heads;
    let mut setup = Setup::new(bench, chance, case, |padded| {
        reference::rotation_order(case.features, head_dim, padded)
    });
    let rope = RopeConfig { theta: 500_000.0, scaling: RopeScaling::None };
    let frequencies = rope.inverse_frequencies(head_dim);
    let pages = Pages::new(chance, case);
    // Layer 1 of 3.
    let layer = 2 * kv_heads * BLOCK_TOKENS * head_dim;
    let (block_stride, layer_offset) = (3 * layer, layer);
    let (gemm, scale) = (setup.operands(bench), setup.row_scale(bench));
    let mut on = [&pages.position, &pages.batch_idx, &pages.table].map(|data| bench.input(data));
    let mut rope_freqs = bench.input(&launch::rope_freqs(&frequencies));
    let terms = head_terms(chance, case, EPS);
    let mut vectors = [&terms.bias, &terms.q_norm, &terms.k_norm].map(|vector| bench.input(vector));
    let (q_found, kv_found) = twice(&setup, |plan| {
        let mut q = bench.output(case.rows * heads * head_dim * 2);
        let mut kv = bench.output(pages.blocks * block_stride * 2);
        let [position, batch_idx, table] = &mut on;
        let base = QkvParams {
            gemm,
            scale,
            q: q.at(bench),
            kv_pool: kv.at(bench),
            position: position.at(bench),
            batch_idx: batch_idx.at(bench),
            block_table: table.at(bench),
            rope_freqs: rope_freqs.at(bench),
            terms: addresses(bench, &terms, &mut vectors),
            block_stride: block_stride as i64,
            layer_offset: layer_offset as i64,
            max_blocks: pages.max_blocks as i32,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            head_dim: head_dim as i32,
        };
        launch_qkv(bench, &setup, plan, base);
        (bench.read::<u16>(&q), bench.read::<u16>(&kv))
    });
    let (q_found, mut kv_found) = (halves(&q_found), halves(&kv_found));
    for row in 0..case.rows {
        let q_row = &q_found[row * heads * head_dim..][..heads * head_dim];
        if pages.batch_idx[row] < 0 {
            assert!(is_untouched(q_row), "padding row {row}: q written");
            continue;
        }
        let position = pages.position[row] as usize;
        let expected = reference::qkv(
            setup.row(row),
            &setup.w,
            setup.scale(row),
            (heads, kv_heads, head_dim),
            &terms,
            position,
            &frequencies,
        );
        compare("q", &setup, row, &expected[..heads * head_dim], wide(q_row));
        let block = pages.table[row * pages.max_blocks + position / BLOCK_TOKENS] as usize;
        for head in 0..2 * kv_heads {
            let at = block * block_stride
                + layer_offset
                + (head * BLOCK_TOKENS + position % BLOCK_TOKENS) * head_dim;
            let expected = &expected[(heads + head) * head_dim..][..head_dim];
            let stored = &mut kv_found[at..][..head_dim];
            compare("kv", &setup, row, expected, wide(stored));
            stored.fill(bf16::from_bits(0xffff));
        }
    }
    assert!(is_untouched(&kv_found), "something else was written");
    setup.check_arrivals(bench);
    setup.plan.launch.kernel
}
