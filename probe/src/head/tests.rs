//! The head against its reference, and against itself with rows and tasks split differently.

use super::*;
use crate::inputs::Beside;
use crate::reference;
use trail_platform::Rng;

/// (d, hidden, bins): the small paper's shape, and ragged ones on either side of every block size.
/// Under Miri, whose blocks are small, two of these.
const SHAPES: &[(usize, usize, usize)] = match cfg!(miri) {
    true => &[(1, 1, 1), (3, 17, 2), (2, 18, 17)],
    false => &[
        (256, 512, 10),
        (1, 1, 1),
        (17, 33, 3),
        (255, 127, 10),
        (257, 129, 16),
        (300, 200, 7),
        (511, 16, 10),
        (65, 130, 17),
        (64, 257, 20),
        (31, 128, 33),
        (256, 300, 64),
        (600, 500, 10),
    ],
};

/// Rows on either side of the tiles' heights and of the row block.
const ROWS: &[usize] = match cfg!(miri) {
    true => &[1, 4],
    false => &[1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 64, 95, 97, 200],
};
/// The largest batch, rows.
const MAX_ROWS: usize = ROWS[ROWS.len() - 1];

fn activations(rows: usize, d: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::from_state(seed);
    (0..rows * d).map(|_| 2.0 * rng.signed()).collect()
}

/// Working memory filled with NaN, to detect reads of values that were not written.
fn poisoned(head: &Head, rows: usize) -> Partials {
    let partials = Partials::new(head, rows);
    for task in 0..head.tasks(rows) {
        let region = &mut *partials.region(task);
        for lines in [&mut region.inputs, &mut region.hidden, &mut region.logits] {
            lines.fill(Line([f32::NAN; LANES]));
        }
    }
    partials
}

fn forward(head: &Head, activations: &[f32], rows: usize) -> Vec<f32> {
    forward_from(head, activations, rows, 0)
}

/// Prompts of the rows of a pass, which take turns.
const PROMPTS: usize = 3;

/// Tokens of prompt number `at`.
fn prompt_tokens(at: usize) -> u32 {
    [1, 77, 4096][at]
}

/// Output tokens of row number `row`: every class of age.
fn generated(row: usize) -> u32 {
    [0, 3, 16, 20, 1000, 1][row % 6]
}

fn mean_of_prompt(d: usize, at: usize) -> Vec<f32> {
    activations(1, d, 1000 + at as u64)
}

/// The shares of all prompts.
fn prompts(head: &Head) -> Vec<PromptSums> {
    let of = |at| {
        let mut sums = head.prompt_sums();
        sums.0.fill(Line([f32::NAN; LANES]));
        let partials = poisoned(head, 1);
        head.read_prompt(&mean_of_prompt(head.d(), at), prompt_tokens(at), &partials, &mut sums);
        sums
    };
    (0..PROMPTS).map(of).collect()
}

/// The inputs of row number `row` beside its activation.
fn beside(prompts: &[PromptSums], row: usize) -> Beside<'_> {
    Beside { generated: generated(row), prompt: prompts.get(row % PROMPTS) }
}

/// The pass of `rows` rows of a batch, from row `first` on.
fn forward_from(head: &Head, activations: &[f32], rows: usize, first: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * head.bins()];
    let prompts = prompts(head);
    let of = Rows { activations, beside: &|row| beside(&prompts, first + row) };
    head.forward(of, rows, &poisoned(head, rows), &mut out);
    out
}

/// Calls `body` with each instruction set, type, shape and seed.
fn for_each_head(mut body: impl FnMut(&Head, &Weights, u64)) {
    for (isa, dtype) in Isa::available().flat_map(|isa| HeadDtype::ALL.map(|dtype| (isa, dtype))) {
        for (seed, (d, hidden, bins)) in (1..).zip(SHAPES.iter().copied()) {
            // Every set of inputs with some of the shapes.
            let inputs = Inputs::ALL[seed as usize % 4];
            let weights = Weights::random(d, hidden, bins, seed).with_random(inputs, seed);
            let head = Head::with_dtype(&weights, dtype).with_isa(isa).unwrap();
            assert_eq!(head.inputs(), inputs);
            body(&head, &dtype.round(&weights), seed);
        }
    }
}

#[test]
fn agrees_with_the_reference_within_the_derived_tolerance() {
    for_each_head(|head, weights, seed| {
        for &rows in ROWS {
            let activations = activations(rows, head.d(), seed);
            let out = forward(head, &activations, rows);
            // Every row of a small batch, and of a large one a sample that walks through the tiles.
            for row in (0..rows).step_by(1 + rows / 13) {
                let mean = mean_of_prompt(head.d(), row % PROMPTS);
                let inputs = reference::Row {
                    activation: &activations[row * head.d()..][..head.d()],
                    generated: generated(row),
                    prompt: Some((&mean, prompt_tokens(row % PROMPTS))),
                };
                let exact = reference::forward(weights, inputs);
                let found = &out[row * head.bins()..][..head.bins()];
                for (bin, &found) in found.iter().enumerate() {
                    let (p, tolerance) = (exact.probabilities[bin], exact.tolerances[bin]);
                    assert!(
                        (f64::from(found) - p).abs() <= tolerance,
                        "{} {:?} rows {rows} row {row} bin {bin}: {found}, not {p} +- {tolerance}",
                        head.isa(),
                        (head.d(), weights.hidden, head.bins()),
                    );
                }
            }
        }
    });
}

#[test]
fn the_tolerance_is_not_slack() {
    let weights = Weights::random(256, 512, 10, 1);
    let activation = activations(1, 256, 1);
    let row = reference::Row { activation: &activation, generated: 0, prompt: None };
    let exact = reference::forward(&weights, row);
    let mut bins = exact.tolerances.iter().zip(&exact.probabilities);
    assert!(bins.all(|(tolerance, p)| *tolerance < 0.005 * p), "{exact:?}");
}

#[test]
fn a_row_has_the_same_bits_in_every_batch() {
    for_each_head(|head, _, seed| {
        let activations = activations(MAX_ROWS, head.d(), seed);
        let all = forward(head, &activations, MAX_ROWS);
        for &rows in ROWS {
            for first in [0, MAX_ROWS - rows] {
                let part = &activations[first * head.d()..][..rows * head.d()];
                let part = forward_from(head, part, rows, first);
                assert_eq!(part, all[first * head.bins()..][..rows * head.bins()]);
            }
        }
    });
}

#[test]
fn the_order_of_tasks_and_the_split_of_rows_leave_no_trace() {
    for_each_head(|head, _, seed| {
        let (rows, mut rng) = (MAX_ROWS, Rng::from_state(seed));
        let activations = activations(rows, head.d(), seed);
        let all = forward(head, &activations, rows);
        let partials = poisoned(head, rows);
        let mut order: Vec<usize> = (0..head.tasks(rows)).collect();
        order.sort_by_cached_key(|_| rng.signed().to_bits());
        let prompts = prompts(head);
        let of = Rows { activations: &activations, beside: &|row| beside(&prompts, row) };
        for task in order {
            head.run_task(task, of, rows, &partials);
        }
        let mut out = vec![f32::NAN; rows * head.bins()];
        let half = MAX_ROWS / 2;
        for range in [0..1, 1..half, half..half, half..MAX_ROWS] {
            let part = range.start * head.bins()..range.end * head.bins();
            head.finish_rows(range, &partials, &mut out[part]);
        }
        assert_eq!(out, all);
    });
}

#[test]
fn threads_sharing_the_tasks_leave_no_trace() {
    let (d, hidden, bins) = SHAPES[SHAPES.len() - 1];
    let weights = Weights::random(d, hidden, bins, 9).with_random(Inputs::ALL[3], 9);
    let head = Head::new(&weights);
    let activations = activations(MAX_ROWS, d, 9);
    let (partials, prompts) = (poisoned(&head, MAX_ROWS), prompts(&head));
    let of = Rows { activations: &activations, beside: &|row| beside(&prompts, row) };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (head, partials) = (&head, &partials);
            scope.spawn(move || {
                for task in (thread..head.tasks(MAX_ROWS)).step_by(3) {
                    head.run_task(task, of, MAX_ROWS, partials);
                }
            });
        }
    });
    let mut out = vec![f32::NAN; MAX_ROWS * bins];
    head.finish_rows(0..MAX_ROWS, &partials, &mut out);
    assert_eq!(out, forward(&head, &activations, MAX_ROWS));
}

#[test]
fn the_two_fused_paths_agree_to_the_bit() {
    if ![Isa::Avx2, Isa::Avx512].iter().all(|isa| isa.is_available()) {
        return;
    }
    for (seed, (d, hidden, bins)) in (1..).zip(SHAPES.iter().copied()) {
        let weights = Weights::random(d, hidden, bins, seed);
        let activations = activations(97, d, seed);
        let [narrow, wide] = [Isa::Avx2, Isa::Avx512]
            .map(|isa| forward(&Head::new(&weights).with_isa(isa).unwrap(), &activations, 97));
        assert_eq!(narrow, wide);
    }
}

#[test]
fn a_logit_has_the_same_bits_whatever_the_number_of_bins() {
    let (d, hidden) = if cfg!(miri) { (2, 18) } else { (40, 300) };
    let weights = Weights::random(d, hidden, 64, 5);
    let activations = activations(13, d, 5);
    // As bits: rows of a region that no task has are NaN.
    let logits = |isa: Isa, bins: usize| -> Vec<Vec<u32>> {
        let mut narrow = Weights { bins, ..weights.clone() };
        narrow.output_weight.truncate(bins * hidden);
        narrow.output_bias.truncate(bins);
        let head = Head::new(&narrow).with_isa(isa).unwrap();
        let partials = poisoned(&head, 13);
        let of = |task: usize| {
            head.run_task(task, Rows::of(&activations), 13, &partials);
            let region = partials.region(task);
            let rows = floats(&region.logits).chunks_exact(bins.next_multiple_of(LANES));
            rows.flat_map(|row| &row[..10]).map(|logit| logit.to_bits()).collect()
        };
        (0..head.tasks(13)).map(of).collect()
    };
    for isa in Isa::available() {
        let ten = logits(isa, 10);
        for bins in [16, 17, 33, 64] {
            assert_eq!(logits(isa, bins), ten, "{isa}, {bins} bins");
        }
    }
}

#[test]
fn a_broken_activation_breaks_its_own_row_only() {
    for_each_head(|head, weights, seed| {
        // With one hidden unit and one bin, softmax is 1 whatever the logit, unless the unit is
        // NaN.
        let mut activations = activations(7, head.d(), seed);
        let whole = forward(head, &activations, 7);
        activations[3 * head.d()] = f32::NAN;
        let broken = forward(head, &activations, 7);
        for row in 0..7 {
            let at = row * weights.bins..(row + 1) * weights.bins;
            if row == 3 {
                assert!(broken[at].iter().all(|p| p.is_nan()));
            } else {
                assert_eq!(broken[at.clone()], whole[at]);
            }
        }
    });
}
