//! Properties of the filter, and its matrix written out.

use trail_base::Rng;

use super::*;

fn smoother() -> Smoother {
    Smoother::new(Bins::default(), Chain::Posterior)
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
    assert!(q.iter().all(|&q| q >= 0.0) && q[bins.count..].iter().all(|&q| q == 0.0), "{q:?}");
    let length = bins.expected(&q.map(|q| q as f32)[..bins.count]);
    let (least, most) = (bins.midpoint(0) as f32, bins.midpoint(bins.count - 1) as f32);
    assert!((least * 0.999_999..=most * 1.000_001).contains(&length), "{length} tokens");
}

#[test]
fn the_belief_is_a_distribution_after_any_observation() {
    for chain in [Chain::Posterior, Chain::Prior] {
        let (smoother, mut rng) = (Smoother::new(Bins::default(), chain), Rng::from_state(7));
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
            assert_is_a_distribution(smoother.bins(), &belief.posterior);
            assert_is_a_distribution(smoother.bins(), &belief.chained);
        }
    }
}

#[test]
fn advancing_is_the_matrix_to_the_power_of_the_tokens() {
    let bins = Bins { count: 4, max_tokens: 22 };
    let smoother = Smoother::new(bins, Chain::Posterior);
    let (n, b) = (bins.count, bins.width());
    let entry = |i: usize, j: usize| match (i, j) {
        (0, 0) => 1.0,
        _ if i == j => 1.0 - 1.0 / b,
        _ if i + 1 == j => 1.0 / b,
        _ => 0.0,
    };
    let start = smoother.start(&[0.1, 0.2, 0.3, 0.4]).0.posterior;
    let mut expected = start;
    for tokens in 0..30 {
        let found = smoother.advance(&start, tokens);
        found.iter().zip(expected).for_each(|(f, e)| assert!((f - e).abs() < 1e-14));
        let next = |i| (0..n).map(|j| entry(i, j) * expected[j]).sum();
        expected = std::array::from_fn(|i| if i < n { next(i) } else { 0.0 });
    }
}

#[test]
fn bin_zero_absorbs_and_a_huge_leap_ends_there() {
    let smoother = smoother();
    let top = smoother.start(&certain_of(9)).0.posterior;
    let end = smoother.advance(&top, u32::MAX);
    assert!(end[0] > 1.0 - 1e-12 && end[1..].iter().all(|&q| q < 1e-30), "{end:?}");
}

#[test]
fn the_product_is_bayes() {
    let smoother = smoother();
    let (p0, p1) = (certain_of(4), certain_of(3));
    let (mut belief, _) = smoother.start(&p0);
    let prior = smoother.advance(&belief.posterior, 1);
    assert_eq!(smoother.observe(&mut belief, 1, &p1), Outcome::Smoothed);
    let product: Vec<f64> = (0..10).map(|i| prior[i] * f64::from(p1[i])).collect();
    let mass: f64 = product.iter().sum();
    for (q, product) in belief.posterior.iter().zip(product) {
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
        belief.posterior[9] > 0.5
    });
    assert!(recovered.is_some(), "{:?}", belief.posterior);
}

#[test]
fn a_product_without_mass_resets_to_p() {
    let smoother = smoother();
    for chain in [Chain::Posterior, Chain::Prior] {
        let smoother = Smoother { chain, ..smoother };
        let (mut belief, _) = smoother.start(&certain_of(0));
        let mut p = [0.0; 10];
        p[9] = 1e-15;
        assert_eq!(smoother.observe(&mut belief, 1, &p), Outcome::Reset);
        assert_eq!((belief.posterior[9], belief.chained[9]), (1.0, 1.0));
    }
}

#[test]
fn invalid_evidence_keeps_the_prior() {
    let smoother = smoother();
    for bad in [f32::NAN, f32::INFINITY, -0.5] {
        let (mut belief, _) = smoother.start(&certain_of(5));
        let prior = smoother.advance(&belief.posterior, 3);
        let mut p = certain_of(0);
        p[2] = bad;
        assert_eq!(smoother.observe(&mut belief, 3, &p), Outcome::KeptPrior);
        belief
            .posterior
            .iter()
            .zip(prior)
            .for_each(|(q, prior)| assert!((q - prior).abs() < FLOOR));
    }
    let (belief, outcome) = smoother.start(&[f32::NAN; 10]);
    assert_eq!((outcome, belief.posterior[0]), (Outcome::KeptPrior, 0.1));
}

#[test]
fn chained_priors_forget_all_but_the_first_evidence() {
    let smoother = Smoother::new(Bins::default(), Chain::Prior);
    let (mut belief, _) = smoother.start(&certain_of(8));
    let mut other = belief;
    for t in 1..20 {
        smoother.observe(&mut belief, 1, &certain_of(2));
        smoother.observe(&mut other, 1, &certain_of(t % 7));
    }
    smoother.observe(&mut belief, 1, &certain_of(4));
    smoother.observe(&mut other, 1, &certain_of(4));
    assert_eq!(belief.posterior, other.posterior);
}
