//! Proof of the small kernels around a step: each against its naive reference, on whatever driver
//! there is.

mod reference;
mod sums;

use half::bf16;
use reference::Layers;
use trail_probe::AGES;
use trail_ptx::DevicePtr;
use trail_runtime::cuda::launch::Launch;
use trail_runtime::cuda::params::{ApplyDiffsParams, EmbedParams, ProbeParams};
use trail_runtime::cuda::plan::step;
use trail_test_support::cuda::{Address, Bench, Chance};

/// Bit patterns that nothing wrote.
fn is_poison<T: bytemuck::Pod>(values: &[T]) -> bool {
    bytemuck::cast_slice::<T, u8>(values).iter().all(|&byte| byte == 0xff)
}

#[test]
fn embed_is_its_reference() {
    let bench = Bench::open();
    let mut chance = Chance(31);
    for (rows, width, vocab) in
        [(1, 8, 3), (5, 128, 10), (17, 256, 7), (3, 1000, 50), (9, 2056, 20), (2, 4096, 5)]
    {
        let table = chance.bf16s(vocab * width, 3.0);
        let gamma = chance.bf16s(width, 2.0);
        let token: Vec<i32> = (0..rows).map(|_| chance.below(vocab) as i32).collect();
        // Batch slots are in another order than rows; some rows take the token that their batch
        // slot chose last.
        let batch_idx: Vec<i32> =
            (0..rows).map(|row| if row % 4 == 3 { -1 } else { (rows - row) as i32 }).collect();
        let (mut given, mut last) = (token.clone(), vec![i32::MAX; rows + 1]);
        for row in (0..rows).filter(|row| row % 3 != 0) {
            last[rows - row] = std::mem::replace(&mut given[row], -1);
        }
        let first = embed(&bench, &table, &gamma, [&given, &last, &batch_idx]);
        assert_eq!(
            first,
            embed(&bench, &table, &gamma, [&given, &last, &batch_idx]),
            "two runs differ"
        );
        let (h, x, ss) = first;
        for row in 0..rows {
            let at = row * width..(row + 1) * width;
            let parts = row * step::parts(width)..(row + 1) * step::parts(width);
            if batch_idx[row] < 0 {
                let zeros = h[at.clone()].iter().chain(&ss[parts]).all(|&bits| bits == 0);
                assert!(zeros && x[at].iter().all(|&bits| bits == 0), "padding row {row}");
                continue;
            }
            let embedding = &table[token[row] as usize * width..][..width];
            let wanted = reference::embed(embedding, &gamma);
            assert_eq!(h[at.clone()], wanted.0.iter().map(|h| h.to_bits()).collect::<Vec<_>>());
            assert_eq!(x[at], wanted.1.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            for (&got, wanted) in ss[parts].iter().zip(wanted.2) {
                // 128 squares and 128 sums, each rounded; all of one sign.
                let tolerance = 129.0 * 2f64.powi(-24) * wanted;
                assert!((f64::from(f32::from_bits(got)) - wanted).abs() <= tolerance, "{wanted}");
            }
        }
    }
}

/// Lists of any length up to the room for them, whole copies, and none at all.
#[test]
fn diffs_are_applied_and_nothing_else() {
    let bench = Bench::open();
    let mut chance = Chance(35);
    for (words, count) in [(1, 1), (40, 0), (1000, 999), (3000, 3000), (9000, 17)] {
        let mut wanted: Vec<u32> = (0..words).map(|_| chance.next_u64() as u32).collect();
        let mut on_device = bench.changed(&wanted);
        let order = chance.permutation(words);
        let diffs: Vec<[u32; 2]> =
            order[..count].iter().map(|&at| [at as u32, chance.next_u64() as u32]).collect();
        // Beyond the count is what an earlier list left.
        let stale = [[words as u32, 7], [u32::MAX, 7]];
        let listed: Vec<u32> = diffs.iter().chain(&stale).flatten().copied().collect();
        let (mut counted, mut listed) = (bench.input(&[count as u32, 9]), bench.input(&listed));
        reference::apply_diffs(&mut wanted, &diffs);
        let params = ApplyDiffsParams {
            words: on_device.at(&bench),
            count: counted.at(&bench),
            diffs: listed.at(&bench),
        };
        let launch = Launch { plan: step::apply_diffs(words), params };
        // SAFETY: all buffers have these extents, and the indices lie within; the inputs are freed
        // in stream order.
        unsafe { bench.device.launch(&bench.stream, &launch) }.unwrap();
        assert!(bench.read::<u32>(&on_device) == wanted, "{count} of {words}");
    }
}

type Embedded = (Vec<u32>, Vec<u16>, Vec<u32>);

fn embed(
    bench: &Bench,
    table: &[bf16],
    gamma: &[bf16],
    [token, last, batch_idx]: [&[i32]; 3],
) -> Embedded {
    let (rows, width) = (token.len(), gamma.len());
    let (mut table, mut gamma) = (bench.input(table), bench.input(gamma));
    let (mut token, mut last, mut batch_idx) =
        (bench.input(token), bench.input(last), bench.input(batch_idx));
    let (mut h, mut x) = (bench.output(rows * width * 4), bench.output(rows * width * 2));
    let mut ss = bench.output(rows * step::parts(width) * 4);
    let params = EmbedParams {
        table: table.at(bench),
        token: token.at(bench),
        last: last.at(bench),
        batch_idx: batch_idx.at(bench),
        gamma: gamma.at(bench),
        h: h.at(bench),
        x: x.at(bench),
        ss: ss.at(bench),
        rows: rows as i32,
        d: width as i32,
        parts: step::parts(width) as i32,
        ..EmbedParams::default()
    };
    let launch = Launch { plan: step::embed(rows, width), params };
    // SAFETY: all buffers have these extents, and live until the reads below have waited for the
    // stream.
    unsafe { bench.device.launch(&bench.stream, &launch) }.unwrap();
    (bench.read(&h), bench.read(&x), bench.read(&ss))
}

/// More requests than means in a step, and coprime to 7.
const REQUESTS: usize = 71;

#[test]
fn probe_is_its_reference() {
    let bench = Bench::open();
    let mut chance = Chance(33);
    for [rows, d, hidden, bins] in [
        [1, 64, 32, 10],
        [63, 128, 64, 1],
        [65, 256, 512, 10],
        [130, 192, 96, 32],
        [16, 4096, 512, 10],
    ] {
        let x = chance.bf16s(rows * d, 2.0);
        let scale = 2.0 / (d as f32).sqrt();
        let floats = |chance: &mut Chance, count: usize, scale: f32| -> Vec<f32> {
            (0..count).map(|_| chance.unit() * scale).collect()
        };
        let layers = Layers {
            hidden_weight: chance.bf16s(hidden * d, scale),
            hidden_bias: floats(&mut chance, AGES * hidden, 0.5),
            mean_weight: chance.bf16s(hidden * d, scale),
            length_weight: floats(&mut chance, hidden, 0.2),
            output_weight: floats(&mut chance, bins * hidden, 0.3),
            output_bias: floats(&mut chance, bins, 1.0),
        };
        // The first half are means of prompts, in another order of requests; the others are later
        // rows of these requests, or of none.
        let means = rows.div_ceil(2);
        let request = |row: usize| (row < means).then(|| (row * 7 + 3) % REQUESTS);
        let of_row = |row: usize| match request(row) {
            Some(request) => [request as i32, 0, (row as f32 + 1.0).ln().to_bits() as i32, 0],
            None if row.is_multiple_of(5) => [-1, 2, 0, 0],
            None => [request(row - means).unwrap() as i32, 1 + (row % (AGES - 1)) as i32, 0, 0],
        };
        let inputs: Vec<[i32; 4]> = (0..rows).map(of_row).collect();
        for reads_prompt in [false, true] {
            let run = || probe(&bench, [rows, d, hidden, bins], &x, &inputs, &layers, reads_prompt);
            let first = run();
            assert_eq!(first, run(), "two runs differ");
            check(&first, &x, &inputs, &layers, reads_prompt);
        }
    }
}

/// Compares the probabilities that were `found` with the reference's.
fn check(found: &[u32], x: &[bf16], inputs: &[[i32; 4]], layers: &Layers, reads_prompt: bool) {
    let (d, bins) = (x.len() / inputs.len(), layers.output_bias.len());
    let row_of = |row: usize| &x[row * d..][..d];
    for (row, got) in found.chunks(bins).enumerate() {
        let [request, age, ..] = inputs[row];
        let mean = inputs.iter().rposition(|of| of[0] == request && of[1] == 0 && request >= 0);
        let mean = mean.filter(|_| reads_prompt);
        let prompt = mean.map(|at| (row_of(at), f32::from_bits(inputs[at][2] as u32)));
        let (wanted, tolerance) = reference::probe(row_of(row), age as usize, prompt, layers);
        for bin in 0..bins {
            let got = f64::from(f32::from_bits(got[bin]));
            assert!(
                (got - wanted[bin]).abs() <= tolerance[bin],
                "row {row} bin {bin}: {got}, not {} within {:e}",
                wanted[bin],
                tolerance[bin]
            );
        }
    }
}

fn probe(
    bench: &Bench,
    [rows, d, hidden, bins]: [usize; 4],
    x: &[bf16],
    inputs: &[[i32; 4]],
    layers: &Layers,
    reads_prompt: bool,
) -> Vec<u32> {
    let (mut x, mut inputs) = (bench.input(x), bench.input(inputs.as_flattened()));
    let (mut hidden_weight, mut hidden_bias) =
        (bench.input(&layers.hidden_weight), bench.input(&layers.hidden_bias));
    let (mut mean_weight, mut length_weight) =
        (bench.input(&layers.mean_weight), bench.input(&layers.length_weight));
    let (mut output_weight, mut output_bias) =
        (bench.input(&layers.output_weight), bench.input(&layers.output_bias));
    let mut prompt_sums = bench.output(REQUESTS * hidden * 4);
    let mut hidden_out = bench.output(rows * hidden * 4);
    let mut probabilities = bench.output(rows * bins * 4);
    let params = ProbeParams {
        x: x.at(bench),
        inputs: inputs.at(bench),
        hidden_weight: hidden_weight.at(bench),
        hidden_bias: hidden_bias.at(bench),
        mean_weight: mean_weight.at(bench),
        length_weight: length_weight.at(bench),
        prompt_sums: if reads_prompt { prompt_sums.at(bench) } else { DevicePtr::NULL },
        output_weight: output_weight.at(bench),
        output_bias: output_bias.at(bench),
        hidden_out: hidden_out.at(bench),
        probabilities: probabilities.at(bench),
        rows: rows as i32,
        d: d as i32,
        hidden: hidden as i32,
        bins: bins as i32,
    };
    let plans = step::probe(rows, d, hidden, bins);
    for &plan in &plans[usize::from(!reads_prompt)..] {
        // SAFETY: all buffers have these extents, and live until the reads below have waited.
        unsafe { bench.device.launch(&bench.stream, &Launch { plan, params }) }.unwrap();
    }
    if reads_prompt {
        // Of requests without a mean in the step nothing is written.
        bench.read::<u32>(&prompt_sums);
    }
    bench.read::<u32>(&hidden_out);
    bench.read(&probabilities)
}
