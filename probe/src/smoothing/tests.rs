//! Properties of the filter, and its matrix written out.

use trail_platform::Rng;

use super::*;

fn smoother() -> Smoother {
    Smoother::new(Bins::default())
}

/// A distribution that is flat, peaked or almost degenerate, by turns.
fn random_p(rng: &mut Rng) -> [f32; 10] {
    let sharpness = 40.0 * (1.0 + rng.signed());
    let mut p = [(); 10].map(|()| (sharpness * rng.signed()).exp());
    let sum: f32 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
    p
}

/// Almost certain of bin `i`.
fn certain_of(i: usize) -> [f32; 10] {
    std::array::from_fn(|j| if i == j { 0.9 } else { 0.1 / 9.0 })
}

fn assert_is_a_distribution(bins: Bins, q: &Distribution) {
    let sum: f64 = q.iter().sum();
    assert!((sum - 1.0).abs() < 1e-12, "{q:?} sums to {sum}");
    let count = bins.count();
    assert!(q.iter().all(|&q| q >= 0.0) && q[count..].iter().all(|&q| q == 0.0), "{q:?}");
    let length = bins.expected(&q.map(|q| q as f32)[..count]);
    let (min, max) = (bins.midpoint(0) as f32, bins.midpoint(count - 1) as f32);
    assert!((min * 0.999_999..=max * 1.000_001).contains(&length), "{length} tokens");
}

#[test]
fn the_belief_is_a_distribution_after_any_observation() {
    let (smoother, mut rng) = (smoother(), Rng::from_state(7));
    let (mut belief, _) = smoother.start(&random_p(&mut rng));
    for step in 0..5000 {
        let mut p = random_p(&mut rng);
        match step % 97 {
            13 => p[3] = f32::NAN,
            29 => p = [0.0; 10],
            41 => p = [f32::MIN_POSITIVE; 10],
            59 => p[9] = f32::INFINITY,
            71 => p[0] = -1.0,
            _ => {}
        }
        smoother.observe(&mut belief, step % 5, &p);
        assert_is_a_distribution(smoother.bins(), &belief);
    }
}

#[test]
fn advancing_is_the_matrix_to_the_power_of_the_tokens() {
    for bins in [Bins::equal(4, 22), Bins::from_edges(&[0.0, 2.5, 3.5, 12.0, 20.0]).unwrap()] {
        let smoother = Smoother::new(bins);
        let entry = |i: usize, j: usize| match (i, j) {
            (0, 0) => 1.0,
            _ if i == j => 1.0 - 1.0 / bins.width(j),
            _ if i + 1 == j => 1.0 / bins.width(j),
            _ => 0.0,
        };
        let start = smoother.start(&[0.1, 0.2, 0.3, 0.4]).0;
        let mut expected = start;
        for tokens in 0..30 {
            let found = smoother.advance(&start, tokens);
            found.iter().zip(expected).for_each(|(f, e)| assert!((f - e).abs() < 1e-14));
            let next = |i| (0..4).map(|j| entry(i, j) * expected[j]).sum();
            expected = std::array::from_fn(|i| if i < 4 { next(i) } else { 0.0 });
        }
    }
}

/// The filter as it was for equal bins only, in terms of one width; `None` where p is invalid.
fn of_one_width(bins: Bins, q: &mut [f64], tokens: u32, p: &[f32]) -> Option<f64> {
    let (count, down) = (bins.count(), 1.0 / (f64::from(bins.max_tokens()) / bins.count() as f64));
    for _ in 0..tokens.min(16 * bins.max_tokens()) {
        let first = q[0] + if count > 1 { down * q[1] } else { 0.0 };
        for i in 1..count {
            let above = if i + 1 < count { q[i + 1] } else { 0.0 };
            q[i] = (1.0 - down) * q[i] + down * above;
        }
        q[0] = first;
    }
    q.iter_mut().for_each(|q| *q = (1.0 - FLOOR) * *q + FLOOR / count as f64);
    let sum: f64 = p.iter().copied().map(f64::from).sum();
    let valid = sum.is_finite() && sum > 0.0 && p.iter().all(|&p| p >= 0.0);
    if valid {
        q.iter_mut().zip(p).for_each(|(q, &p)| *q *= f64::from(p));
    }
    let mass: f64 = q.iter().sum();
    q.iter_mut().for_each(|q| *q /= mass);
    valid.then_some(mass)
}

#[test]
fn equal_bins_give_the_bits_of_one_width() {
    let mut rng = Rng::from_state(11);
    for (count, max_tokens) in [(1, 9), (2, 100), (10, 512), (16, 16), (16, 1000), (64, 4097)] {
        let bins = Bins::equal(count, max_tokens);
        let smoother = Smoother::new(bins);
        let mut draw = |step: u32| -> Vec<f32> {
            let sharpness = 8.0 * (1.0 + rng.signed());
            let mut p: Vec<f32> = (0..count).map(|_| (sharpness * rng.signed()).exp()).collect();
            let sum: f32 = p.iter().sum();
            p.iter_mut().for_each(|p| *p /= if step % 37 == 5 { f32::NAN } else { sum });
            p
        };
        let (mut belief, _) = smoother.start(&draw(0));
        let mut expected = belief[..count].to_vec();
        for step in 1..500 {
            let (tokens, p) = (if step % 50 == 9 { 3 * max_tokens } else { step % 4 }, draw(step));
            let outcome = smoother.observe(&mut belief, tokens, &p);
            let mass = of_one_width(bins, &mut expected, tokens, &p);
            assert!(mass.is_none_or(|mass| mass > MIN_MASS));
            assert_eq!(outcome == FilterOutcome::KeptPrior, mass.is_none());
            assert_eq!(belief[..count], expected, "{count} bins, step {step}");
        }
    }
}

#[test]
fn bin_zero_absorbs_and_a_huge_leap_ends_there() {
    let smoother = smoother();
    let top = smoother.start(&certain_of(9)).0;
    let end = smoother.advance(&top, u32::MAX);
    assert!(end[0] > 1.0 - 1e-12 && end[1..].iter().all(|&q| q < 1e-30), "{end:?}");
}

#[test]
fn the_product_is_bayes() {
    let smoother = smoother();
    let (p0, p1) = (certain_of(4), certain_of(3));
    let (mut belief, _) = smoother.start(&p0);
    let prior = smoother.advance(&belief, 1);
    assert_eq!(smoother.observe(&mut belief, 1, &p1), FilterOutcome::Smoothed);
    let product: Vec<f64> = (0..10).map(|i| prior[i] * f64::from(p1[i])).collect();
    let mass: f64 = product.iter().sum();
    for (q, product) in belief.iter().zip(product) {
        assert!((q - product / mass).abs() < 2.0 * FLOOR);
    }
}

/// In the released code, single precision loses the upper bins after 24 confidently wrong steps,
/// for good.
#[test]
fn confident_errors_do_not_lock_the_filter_in() {
    let smoother = smoother();
    let (mut belief, _) = smoother.start(&certain_of(0));
    for _ in 0..2000 {
        smoother.observe(&mut belief, 1, &certain_of(0));
    }
    let recovered = (1..=10).find(|_| {
        smoother.observe(&mut belief, 1, &certain_of(9));
        belief[9] > 0.5
    });
    assert!(recovered.is_some(), "{belief:?}");
}

#[test]
fn evidence_that_shares_little_mass_with_the_prior_is_a_surprise() {
    let smoother = smoother();
    let start = smoother.start(&certain_of(8)).0;
    let flat_but = |at: usize, rest: f32| -> [f32; 10] {
        std::array::from_fn(|i| if i == at { 1.0 - rest } else { rest / 9.0 })
    };
    let prior = smoother.advance(&start, 1);
    for p in [0.0, 0.01, 0.03, 0.04, 0.05, 0.9].map(|rest| flat_but(0, rest)) {
        let shared: f64 = (0..10).map(|i| prior[i].min(f64::from(p[i]))).sum();
        let wanted = if shared < 0.05 { FilterOutcome::Surprise } else { FilterOutcome::Smoothed };
        let product: Vec<f64> = (0..10).map(|i| prior[i] * f64::from(p[i])).collect();
        let mass: f64 = product.iter().sum();
        // The scale of p has no influence.
        for scale in [0.01, 1.0, 30.0] {
            let mut belief = start;
            assert_eq!(smoother.observe(&mut belief, 1, &p.map(|p| p * scale)), wanted, "{shared}");
            let near = |(q, product): (&f64, &f64)| (q - product / mass).abs() < 1e-3;
            assert!(belief.iter().zip(&product).all(near), "the product: {belief:?}");
        }
    }
}

#[test]
fn a_product_without_mass_gives_p() {
    let smoother = smoother();
    let (mut belief, _) = smoother.start(&certain_of(0));
    let mut p = [0.0; 10];
    p[9] = 1e-15;
    assert_eq!(smoother.observe(&mut belief, 1, &p), FilterOutcome::Surprise);
    assert_eq!(belief[9], 1.0);
}

#[test]
fn invalid_evidence_keeps_the_prior() {
    let smoother = smoother();
    for bad in [f32::NAN, f32::INFINITY, -0.5] {
        let (mut belief, _) = smoother.start(&certain_of(5));
        let prior = smoother.advance(&belief, 3);
        let mut p = certain_of(0);
        p[2] = bad;
        assert_eq!(smoother.observe(&mut belief, 3, &p), FilterOutcome::KeptPrior);
        belief.iter().zip(prior).for_each(|(q, prior)| assert!((q - prior).abs() < FLOOR));
    }
    let (belief, outcome) = smoother.start(&[f32::NAN; 10]);
    assert_eq!((outcome, belief[0]), (FilterOutcome::KeptPrior, 0.1));
}
