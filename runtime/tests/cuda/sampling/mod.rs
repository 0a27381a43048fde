//! Proof of the sampling kernels: the CPU sampler's tokens and log-probabilities, bit for bit, on
//! whatever driver there is.

mod cases;
mod reference;

use cases::{Case, KINDS, Kind, case, logits};
use trail_runtime::backend::{Allowed, Sampled, TokenMask};
use trail_runtime::cuda::launch::{self, Launch, row_sampling};
use trail_runtime::cuda::params::{RowSampled, RowSampling, SampleParams, TokenCountsParams};
use trail_runtime::cuda::plan::sampling::SamplingPlan;
use trail_runtime::cuda::{plain, plan};
use trail_runtime::engine::SamplingParams;
use trail_test_support::cuda::{Address, Bench, Chance, Output};

/// Bytes of a row's result, and the step that they are stamped with.
const SAMPLED: usize = size_of::<RowSampled>();
const STEP_SEQ: u32 = 0x89ab_cdef;

/// Results of one run.
struct Answer {
    sampled: Vec<u8>,
    last: Vec<i32>,
    counts: Vec<u32>,
}

/// Samples with a team of `team` blocks a row.
fn launch(bench: &Bench, vocab: usize, stride: usize, cases: &[Case], team: usize) -> Answer {
    let rows = cases.len();
    let mut logits = vec![f32::NAN; rows * stride];
    let mut row_samplings = Vec::new();
    let (mut tokens, mut jobs) = (Vec::new(), Vec::new());
    for (row, case) in cases.iter().enumerate() {
        // Logits are in the opposite order of the rows.
        let logits_row = rows - 1 - row;
        if let Some(given) = &case.logits {
            logits[logits_row * stride..][..vocab].copy_from_slice(given);
        }
        row_samplings.push(RowSampling {
            mask_row: if matches!(case.allowed, Allowed::Mask(_)) { row as i32 } else { -1 },
            row: case.logits.as_ref().map_or(-1, |_| logits_row as i32),
            token_counts_row: row as i32,
            batch_idx: (rows + 1 - row) as i32,
            position: case.position,
            ..row_sampling(&case.params)
        });
        jobs.extend([
            row as i32,
            tokens.len() as i32,
            case.prompt.len() as i32,
            case.generated.len() as i32,
        ]);
        tokens.extend(case.prompt.iter().chain(&case.generated).map(|&token| token as i32));
    }
    jobs.extend([-1, 0, 0, 0]);
    let plan = plan_of(bench, rows, vocab, team);
    let (mut logits, mut row_sampling) =
        (bench.input(&logits), bench.input(plain::bytes_of(&row_samplings)));
    let (mut counts, mut weights) = (bench.output(rows * vocab * 4), bench.raw(plan.weights * 4));
    let (mut sums, mut sampled) = (bench.raw(5 * plan.sums * 4), bench.output(rows * SAMPLED));
    let (mut team_sums, mut band) = (bench.raw(plan.team_sums * 4), bench.raw(plan.band * 8));
    // A barrier's word is what other launches left there: any number of generations.
    let barriers: Vec<u32> = (0..rows as u32).map(|row| (0xfffe + row) << 16).collect();
    let mut team_barriers = bench.changed(&barriers);
    let mut band_count = bench.changed(&vec![0u32; rows]);
    let masks = mask_words(vocab, cases);
    let (words, mut masks) = (masks.len() / rows, bench.input(&masks));
    // Batch slots are in another order than rows, and two are free.
    let (mut last, mut step_seq) = (bench.output((rows + 2) * 4), bench.input(&[STEP_SEQ]));
    let params = SampleParams {
        logits: logits.at(bench),
        stride: stride as i32,
        row_sampling: row_sampling.at(bench),
        token_counts: counts.at(bench),
        masks: masks.at(bench),
        mask_words: words as i32,
        weights: weights.at(bench),
        block_max: sums.at(bench),
        team_sums: team_sums.at(bench),
        band: band.at(bench),
        band_count: band_count.at(bench),
        team_barriers: team_barriers.at(bench),
        sampled: sampled.at(bench),
        last: last.at(bench),
        step_seq: step_seq.at(bench),
        ..SampleParams::default()
    };
    count_tokens(bench, vocab, &tokens, &jobs, &mut counts);
    for launch in launch::sample(&plan, params) {
        // SAFETY: all buffers are as large as the plan says, and alive until the reads below have
        // waited for the stream.
        unsafe { bench.device.launch(&bench.stream, &launch) }.unwrap();
    }
    assert!(bench.read::<u32>(&band_count).iter().all(|&count| count == 0));
    assert!(bench.read::<u32>(&team_barriers).iter().all(|&word| word & 0xffff == 0));
    Answer { sampled: bench.read(&sampled), last: bench.read(&last), counts: bench.read(&counts) }
}

/// Teams of `team` blocks, or single blocks where the device does not hold all at one time.
fn plan_of(bench: &Bench, rows: usize, vocab: usize, team: usize) -> SamplingPlan {
    let plan = plan::sampling::sampling(rows, vocab, team);
    let choose = &plan.launches[2];
    let fits = || choose.grid[0] * choose.grid[1] <= bench.device.resident_blocks(choose).unwrap();
    if choose.cooperative && !fits() { plan::sampling::sampling(rows, vocab, 1) } else { plan }
}

/// The masks of all cases, zeros where there is none.
fn mask_words(vocab: usize, cases: &[Case]) -> Vec<u32> {
    let words = |case: &Case| match &case.allowed {
        Allowed::Mask(mask) => mask.words().to_vec(),
        _ => TokenMask::none(vocab).words().to_vec(),
    };
    cases.iter().flat_map(words).collect()
}

/// Writes the token counts of all `jobs` over `tokens`.
fn count_tokens(bench: &Bench, vocab: usize, tokens: &[i32], jobs: &[i32], counts: &mut Output) {
    let plan = plan::sampling::token_counts(jobs.len() / 4, tokens.len(), vocab);
    let (mut tokens, mut jobs) = (bench.input(tokens), bench.input(jobs));
    let params = TokenCountsParams {
        token_counts: counts.at(bench),
        tokens: tokens.at(bench),
        jobs: jobs.at(bench),
        vocab: vocab as i32,
        ..TokenCountsParams::default()
    };
    // SAFETY: the counts have a row for each job; the inputs are freed in stream order.
    unsafe { bench.device.launch(&bench.stream, &Launch { plan, params }) }.unwrap();
}

fn check(bench: &Bench, vocab: usize, cases: &[Case]) {
    let stride = vocab.next_multiple_of(128);
    let answer = launch(bench, vocab, stride, cases, 1);
    // Teams of any size, also of more blocks than there are 256 tokens.
    for team in [1, 3] {
        let again = launch(bench, vocab, stride, cases, team);
        assert!(answer.sampled == again.sampled, "a team of {team} samples otherwise");
    }
    let rows = plain::read_all::<RowSampled>(&answer.sampled);
    assert_eq!(answer.last[..2], [-1, -1], "a batch slot without a row was written");
    for (index, case) in cases.iter().enumerate() {
        let mut counts = reference::token_counts(vocab, &case.prompt, &case.generated);
        if let Some(logits) = &case.logits {
            let wanted = reference::sample(
                logits,
                &case.params,
                &case.prompt,
                &case.generated,
                case.position,
                &case.allowed,
            );
            let got = launch::sampled(&rows[index]);
            assert!(same(&got, &wanted), "{:?} of {vocab}: {got:?}, not {wanted:?}", case.params);
            assert_eq!(rows[index].step_seq, STEP_SEQ);
            // The step in flight embeds `last`: a valid token also where there is none.
            let last = answer.last[cases.len() + 1 - index];
            assert_eq!(last, wanted.map_or(0, |token| token.id as i32));
            if let Ok(token) = wanted {
                counts[token.id as usize] += 1;
            }
        } else {
            let row = &answer.sampled[index * SAMPLED..][..SAMPLED];
            assert!(row.iter().all(|&byte| byte == 0xff), "a padding row was written");
            assert_eq!(answer.last[cases.len() + 1 - index], -1, "a padding row was written");
        }
        assert!(answer.counts[index * vocab..][..vocab] == counts, "token counts of row {index}");
    }
}

/// Equal to the bit, also where a log-probability is not a number.
fn same(a: &Sampled, b: &Sampled) -> bool {
    let (Ok(a), Ok(b)) = (a, b) else { return a == b };
    let bits = |top: &[(u32, f32)]| {
        top.iter().map(|&(id, logprob)| (id, logprob.to_bits())).collect::<Vec<_>>()
    };
    (a.id, a.logprob.to_bits(), a.num_top) == (b.id, b.logprob.to_bits(), b.num_top)
        && bits(&a.top) == bits(&b.top)
}

/// Every kind of logits with every kind of parameters, in batches with padding rows.
#[test]
fn the_device_chooses_what_the_cpu_does() {
    let bench = Bench::open();
    let mut chance = Chance(21);
    for vocab in [2, 7, 255, 256, 257, 1000, 1024, 4097] {
        let mut cases: Vec<Case> =
            (0..24).map(|i| case(&mut chance, KINDS[i % KINDS.len()], vocab)).collect();
        cases[3].logits = None;
        check(&bench, vocab, &cases);
    }
}

/// Vocabularies of real models; nuclei that must be narrowed, and ties that cannot be.
#[test]
fn large_vocabularies() {
    let bench = Bench::open();
    let mut chance = Chance(22);
    for (vocab, kinds) in [
        (32_000, [Kind::Flat, Kind::Peaked]),
        (128_256, [Kind::Flat, Kind::Tied]),
        (151_936, [Kind::Equal, Kind::Peaked]),
    ] {
        let mut cases: Vec<Case> =
            kinds.iter().map(|&kind| case(&mut chance, kind, vocab)).collect();
        for (case, top_p) in cases.iter_mut().zip([0.9, 0.6]) {
            case.params.temperature = 1.0;
            case.params.top_p = top_p;
            case.params.min_p = 0.0;
            case.params.top_k = 0;
        }
        cases[1].params.top_k = 60_000;
        check(&bench, vocab, &cases);
    }
}

/// Fewer tokens are allowed than the top-k asks for: nothing is truncated, and the first block of a
/// team must not count its choice while others still read the counts for penalties.
#[test]
fn a_top_k_of_more_than_all() {
    let bench = Bench::open();
    let mut chance = Chance(25);
    let vocab = 1000;
    let cases: Vec<Case> = (0..24)
        .map(|_| {
            let mut case = case(&mut chance, Kind::Flat, vocab);
            let mut mask = TokenMask::none(vocab);
            (0..3).for_each(|_| mask.allow(chance.below(vocab) as u32));
            case.allowed = Allowed::Mask(mask.into());
            case.params.temperature = 1.0;
            (case.params.top_k, case.params.top_p, case.params.min_p) = (50, 1.0, 0.0);
            case.params.presence_penalty = 0.6;
            case
        })
        .collect();
    check(&bench, vocab, &cases);
}

/// One logit that is not finite, wherever it is, is a fault of its row and of no other.
#[test]
fn one_bad_logit_is_a_fault_of_its_row_alone() {
    let bench = Bench::open();
    let mut chance = Chance(24);
    for vocab in [3, 257, 4097] {
        for bad in [f32::NAN, f32::INFINITY] {
            for at in [0, vocab / 2, vocab - 1] {
                let plain =
                    |_| Case { allowed: Allowed::Any, ..case(&mut chance, Kind::Peaked, vocab) };
                let mut cases: Vec<Case> = (0..4).map(plain).collect();
                for broken in [1, 2] {
                    cases[broken].logits.as_mut().expect("logits")[at] = bad;
                }
                check(&bench, vocab, &cases);
                let failed = cases.iter().map(|case| {
                    let logits = case.logits.as_ref().expect("logits");
                    reference::sample(logits, &case.params, &[], &[], 0, &Allowed::Any).is_err()
                });
                assert_eq!(failed.collect::<Vec<_>>(), [false, true, true, false]);
            }
        }
    }
}

/// Many draws of one distribution: the tokens of the CPU's stream of positions.
#[test]
fn positions_are_the_randomness() {
    let bench = Bench::open();
    let mut chance = Chance(23);
    let logits = logits(&mut chance, Kind::Flat, 700);
    let params = SamplingParams {
        top_p: 0.97,
        top_k: 400,
        seed: 0x1234_5678_9abc_def0,
        ..SamplingParams::default()
    };
    let cases: Vec<Case> = (0..64)
        .map(|position| Case {
            allowed: Allowed::Any,
            logits: Some(logits.clone()),
            params: params.clone(),
            prompt: vec![],
            generated: vec![],
            position,
        })
        .collect();
    check(&bench, 700, &cases);
}
