use super::*;

/// Answers of 1 to 400 tokens, equally frequent, and a quarter of all cut at 512.
fn fit(evidence: f32) -> Fit {
    let mut lengths = vec![0.75 / 400.0; 400];
    lengths.resize(511, 0.0);
    lengths.push(0.25);
    Fit { lengths, temperature: [1.0; AGES], evidence: [evidence; AGES] }
}

fn filter(evidence: f32) -> TokenFilter {
    TokenFilter::new(Bins::default(), fit(evidence))
}

/// A distribution that gives `bin` nine tenths.
fn certain(bin: usize) -> [f32; 10] {
    std::array::from_fn(|other| if other == bin { 0.9 } else { 0.1 / 9.0 })
}

/// The definition in `f64`, without floor: masses by total length.
fn plain(filter: &TokenFilter, steps: &[(u32, u32, [f32; 10])]) -> f64 {
    let fit = &filter.fit;
    let mut q: Vec<f64> = fit.lengths.iter().map(|&h| f64::from(h)).collect();
    let mut last = 0;
    for (tokens, generated, p) in steps {
        last = *generated;
        let exponent = f64::from(fit.evidence[age_class(*generated)] * *tokens as f32);
        let (mut prior, mut alive) = ([0.0; 10], 0.0);
        for (length, h) in (1..).zip(&fit.lengths).filter(|(length, _)| length > generated) {
            prior[filter.bins.bin_of(length - generated)] += f64::from(*h);
            alive += f64::from(*h);
        }
        let prior = prior.map(|mass| (mass / alive).max(0.01));
        for (state, q) in q.iter_mut().enumerate() {
            let length = state as u32 + 1;
            if length <= *generated {
                *q = 0.0;
                continue;
            }
            let bin = filter.bins.bin_of(length - generated);
            *q *= (f64::from(p[bin]) / prior[bin]).powf(exponent);
        }
    }
    let mass: f64 = q.iter().sum();
    let moment: f64 = q.iter().zip(1..).map(|(q, length)| q * f64::from(length)).sum();
    moment / mass - f64::from(last)
}

#[test]
fn it_is_the_definition() {
    let filter = filter(0.3);
    let steps = [
        (1, 0, certain(4)),
        (1, 1, certain(3)),
        (1, 2, certain(4)),
        (5, 7, certain(4)),
        (43, 50, certain(3)),
    ];
    let mut q = vec![0.0; filter.states()];
    for end in 1..=steps.len() {
        let (tokens, generated, p) = steps[end - 1];
        let (remaining, outcome) = match end {
            1 => filter.start(&mut q, 0, &p),
            _ => filter.observe(&mut q, tokens, generated, &p),
        };
        let mut bounded = steps;
        bounded.iter_mut().for_each(|step| step.0 = step.0.min(MAX_TOKENS));
        let expected = plain(&filter, &bounded[..end]);
        // Sums of at most 512 products in f32, and a floor of 1e-6.
        assert!((f64::from(remaining.mean) - expected).abs() < 0.01, "{remaining:?} {expected}");
        assert_eq!(outcome, FilterOutcome::Smoothed);
        let (scale, masses) = q.split_last().expect("a state");
        let mass = scale * masses[generated as usize..].iter().sum::<f32>();
        assert!((mass - 1.0).abs() < 1e-4, "{mass}");
        let [p10, p50, p90] = remaining.quantiles;
        assert!(p10 <= p50 && p50 <= p90);
    }
}

/// Evidence of seven to one at each of 390 steps: without the factor that normalizes, the masses
/// would leave the range of f32.
#[test]
fn hundreds_of_agreeing_steps_stay_in_range() {
    let filter = filter(1.0);
    let mut q = vec![0.0; filter.states()];
    filter.start(&mut q, 0, &certain(filter.bins.bin_of(395)));
    for generated in 1..390 {
        let bin = filter.bins.bin_of(395 - generated);
        let (remaining, outcome) = filter.observe(&mut q, 1, generated, &certain(bin));
        assert_eq!(outcome, FilterOutcome::Smoothed);
        // The bin's width is 51.2 tokens.
        let error = remaining.mean - (395 - generated) as f32;
        assert!(error.abs() < 52.0, "after {generated}: {remaining:?}");
    }
}

#[test]
fn without_evidence_what_remains_follows_from_the_lengths() {
    let filter = filter(0.0);
    let mut q = vec![0.0; filter.states()];
    let flat = [0.1; 10];
    let (first, _) = filter.start(&mut q, 0, &flat);
    assert!((first.mean - (0.75 * 200.5 + 0.25 * 512.0)).abs() < 0.01);
    // Of 100 lengths that are left and the cut ones.
    let (later, _) = filter.observe(&mut q, 300, 300, &flat);
    let (left, cut) = (0.75 * 100.0 / 400.0, 0.25);
    let expected = (left * 50.5 + cut * 212.0) / (left + cut);
    assert!((later.mean - expected).abs() < 0.01, "{later:?} {expected}");
    // Only the cut ones are left, and they count down exactly.
    for generated in 400..512 {
        let (remaining, _) = filter.observe(&mut q, 1, generated, &flat);
        let exact = (512 - generated) as f32;
        assert_eq!((remaining.mean, remaining.quantiles), (exact, [exact; 3]));
    }
}

#[test]
fn beyond_the_longest_answer_only_the_evidence_is_left() {
    let filter = filter(0.3);
    let mut q = vec![0.0; filter.states()];
    filter.start(&mut q, 0, &certain(9));
    let (remaining, outcome) = filter.observe(&mut q, 1, 600, &certain(2));
    assert_eq!(outcome, FilterOutcome::Surprise);
    assert_eq!(remaining.mean, Bins::default().expected(&certain(2)));
    filter.observe(&mut q, u32::MAX, u32::MAX, &certain(2));
}

#[test]
fn what_is_no_distribution_keeps_the_prior() {
    let filter = filter(0.3);
    let mut q = vec![0.0; filter.states()];
    let (first, _) = filter.start(&mut q, 0, &certain(4));
    for bad in [[f32::NAN; 10], [0.0; 10], [-1.0; 10]] {
        let (remaining, outcome) = filter.observe(&mut q, 1, 1, &bad);
        assert_eq!(outcome, FilterOutcome::KeptPrior);
        assert!((remaining.mean - first.mean).abs() < 2.0, "{remaining:?} {first:?}");
    }
    let mut started = vec![0.0; filter.states()];
    let (remaining, outcome) = filter.start(&mut started, 0, &[f32::INFINITY; 10]);
    assert!(outcome == FilterOutcome::KeptPrior && remaining.mean.is_finite());
}

#[test]
fn wrong_evidence_is_outweighed_later() {
    let filter = filter(1.0);
    let mut q = vec![0.0; filter.states()];
    filter.start(&mut q, 0, &certain(0));
    for generated in 1..40 {
        filter.observe(&mut q, 1, generated, &certain(0));
    }
    let mut predicted = 0.0;
    for generated in 40..80 {
        predicted = filter.observe(&mut q, 1, generated, &certain(5)).0.mean;
    }
    assert!((predicted - 281.6).abs() < 30.0, "{predicted}");
}

#[test]
fn evidence_against_the_prior_is_a_surprise() {
    let filter = filter(0.5);
    let mut q = vec![0.0; filter.states()];
    filter.start(&mut q, 0, &certain(7));
    let sure =
        |bin| -> [f32; 10] { std::array::from_fn(|other| if other == bin { 0.999 } else { 1e-4 }) };
    for generated in 1..20 {
        filter.observe(&mut q, 1, generated, &sure(7));
    }
    assert_eq!(filter.observe(&mut q, 1, 20, &sure(0)).1, FilterOutcome::Surprise);
}

#[test]
fn a_fit_of_another_size_is_refused() {
    let bins = Bins::default();
    let change = |change: &dyn Fn(&mut Fit)| {
        let mut changed = fit(0.3);
        change(&mut changed);
        changed.check(&bins).expect_err("refused")
    };
    assert_eq!(fit(0.3).check(&bins), Ok(()));
    assert!(change(&|fit| fit.lengths.truncate(511)).contains("512 states"));
    assert!(change(&|fit| fit.lengths[3] = f32::NAN).contains("512 states"));
    assert!(change(&|fit| fit.temperature[1] = 0.0).contains("temperatures"));
    assert!(change(&|fit| fit.evidence[1] = f32::INFINITY).contains("temperatures"));
}
