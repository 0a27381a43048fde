//! The bins against their definitions, and equal ones against integer arithmetic.

use trail_platform::Rng;

use super::*;

#[test]
fn the_papers_bins() {
    let bins = Bins::default();
    assert_eq!((bins.count(), bins.max_tokens(), bins.width(9)), (10, 512, 51.2));
    assert_eq!((bins.midpoint(0), bins.midpoint(9)), (25.6, 51.2 * 9.5));
    // 51.2 i rounded up is the first integer of bin i; 512 is in the last, which is closed.
    for i in 1..10 {
        let first = (51.2 * i as f64).ceil() as u32;
        assert_eq!((bins.bin_of(first - 1), bins.bin_of(first)), (i - 1, i));
    }
    assert_eq!((bins.bin_of(0), bins.bin_of(512), bins.bin_of(u32::MAX)), (0, 9, 9));
}

#[test]
fn boundaries_that_are_whole_open_the_next_bin() {
    let bins = Bins::equal(4, 400);
    assert_eq!([99, 100, 399, 400].map(|n| bins.bin_of(n)), [0, 1, 3, 3]);
}

#[test]
fn equal_bins_are_those_of_integer_arithmetic() {
    let mut rng = Rng::from_state(5);
    for count in 1..=MAX_BINS {
        let random = count as u32 + rng.below(10_000) as u32;
        for max_tokens in [count as u32, random, 512.max(count as u32), MAX_TOKENS] {
            let bins = Bins::equal(count, max_tokens);
            let bin = |n: u32| u64::from(n) * count as u64 / u64::from(max_tokens);
            let mut check =
                |n: u32| assert_eq!(bins.bin_of(n), (bin(n) as usize).min(count - 1), "{n}");
            for &edge in bins.edges() {
                let whole = edge as u32;
                (whole.saturating_sub(2)..=whole + 2).for_each(&mut check);
            }
            (0..50).for_each(|_| check(rng.below(u64::from(2 * max_tokens)) as u32));
        }
    }
}

/// Expectation and quantile in terms of one width, as they were before bins had edges.
#[test]
fn equal_bins_give_the_bits_of_one_width() {
    let mut rng = Rng::from_state(6);
    for (count, max_tokens) in [(1, 100), (10, 512), (7, 4096), (16, 1000), (64, 8191)] {
        let bins = Bins::from_edges(Bins::equal(count, max_tokens).edges()).unwrap();
        let width = f64::from(max_tokens) / count as f64;
        for _ in 0..200 {
            let q: Vec<f32> = (0..count).map(|_| 1.0 + rng.signed()).collect();
            let (mut mass, mut moment) = (0.0, 0.0);
            for (i, &q) in q.iter().enumerate() {
                mass += f64::from(q);
                moment += f64::from(q) * (width * (i as f64 + 0.5));
            }
            assert_eq!(bins.expected(&q), (moment / mass) as f32);
            let p = 0.5 + 0.5 * rng.signed();
            let mut wanted = f64::from(p) * q.iter().copied().map(f64::from).sum::<f64>();
            let at = q.iter().position(|&q| {
                let found = q > 0.0 && wanted <= f64::from(q);
                wanted -= if found { 0.0 } else { f64::from(q) };
                found
            });
            let Some(at) = at else { continue };
            let fraction = wanted.max(0.0) / f64::from(q[at]);
            assert_eq!(bins.quantile(&q, p), (width * (at as f64 + fraction)) as f32);
        }
    }
}

#[test]
fn expectation_and_quantiles() {
    let bins = Bins::equal(4, 400);
    let q = [0.5, 0.0, 0.25, 0.25];
    assert_eq!(bins.expected(&q), 175.0);
    assert_eq!(bins.quantile(&q, 0.25), 50.0);
    assert_eq!(bins.quantile(&q, 0.5), 100.0);
    assert_eq!(bins.quantile(&q, 0.75), 300.0);
    assert_eq!(bins.quantile(&q, 1.0), 400.0);
    assert_eq!(bins.quantile(&[0.0, 2.0, 0.0, 0.0], 0.0), 100.0);
    assert_eq!(bins.quantile(&[0.0, 2.0, 0.0, 0.0], 1.0), 200.0);
}

#[test]
fn bins_of_given_edges() {
    let bins = Bins::from_edges(&[0.0, 1.0, 4.5, 20.0]).unwrap();
    assert_eq!((bins.count(), bins.max_tokens()), (3, 20));
    assert_eq!(bins.edges(), [0.0, 1.0, 4.5, 20.0]);
    assert_eq!([0, 1, 2].map(|i| bins.width(i)), [1.0, 3.5, 15.5]);
    assert_eq!([0, 1, 2].map(|i| bins.lower(i)), [0.0, 1.0, 4.5]);
    assert_eq!([0, 1, 2].map(|i| bins.midpoint(i)), [0.5, 2.75, 12.25]);
    assert_eq!([0, 1, 4, 5, 20, 21].map(|n| bins.bin_of(n)), [0, 1, 1, 2, 2, 2]);
    let q = [0.5, 0.25, 0.25];
    assert_eq!(bins.expected(&q), 0.25 + 0.6875 + 3.0625);
    assert_eq!(bins.quantile(&q, 0.625), 2.75);
    assert_eq!(bins.quantile(&q, 0.9375), 4.5 + 0.75 * 15.5);
    assert_eq!(bins.quantile(&[0.5, 0.25, 0.0], 1.0), 4.5);
}

#[test]
fn edges_that_are_no_bins_are_refused() {
    let refused = |edges: &[f64]| Bins::from_edges(edges).expect_err("no bins");
    assert_eq!(refused(&[0.0]), "1 edges, not 2 to 65");
    assert_eq!(refused(&[1.0, 2.0]), "1 as the first edge, not 0");
    assert_eq!(refused(&[0.0, 3.0, 3.5]), "an edge at 3.5 after 3, not at least 1 above");
    let whole = "as the last edge, not a whole number up to 16777216";
    assert_eq!(refused(&[0.0, 3.5]), format!("3.5 {whole}"));
    assert_eq!(refused(&[0.0, 1e8]), format!("100000000 {whole}"));
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        for at in 0..3 {
            let mut edges = [0.0, 10.0, 20.0];
            edges[at] = bad;
            refused(&edges);
        }
    }
    let edges: Vec<f64> = (0..=MAX_BINS as u32).map(f64::from).collect();
    assert_eq!(Bins::from_edges(&edges).unwrap().count(), MAX_BINS);
    refused(&[&edges[..], &[100.0]].concat());
}

#[test]
fn logarithmic_bins_grow_by_one_factor() {
    let bins = Bins::log(10, 512);
    let edges = [0.0, 1.0, 3.0, 6.0, 12.0, 24.0, 44.0, 82.0, 152.0, 279.0, 512.0];
    assert_eq!(bins.edges(), edges);
    for count in 1..=MAX_BINS {
        for max_tokens in [0, 1, 500, 4000, 100_000].map(|more| count as u32 + more) {
            let bins = Bins::log(count, max_tokens);
            assert_eq!((bins.count(), bins.max_tokens()), (count, max_tokens));
            let widths: Vec<f64> = (0..count).map(|i| bins.width(i)).collect();
            // Both edges of a bin are rounded by up to half a token.
            assert!(widths.windows(2).all(|pair| pair[1] > pair[0] - 2.0), "{widths:?}");
            assert!(count == 1 || (1.0..=2.0).contains(&widths[0]), "{widths:?}");
        }
    }
    let bins = Bins::log(20, 1 << 20);
    let widths: Vec<f64> = (0..20).map(|i| bins.width(i)).collect();
    let factor = widths[19] / widths[18];
    for pair in widths.windows(2) {
        // Rounding moves each width by up to 1.
        assert!((pair[1] - factor * pair[0]).abs() <= 1.0 + factor, "{widths:?}");
    }
}

#[test]
fn what_lies_beyond_a_cut_counts_where_it_is() {
    let bins = Bins::equal(8, 800);
    assert_eq!((bins.left(501), bins.left(799)), (299.0, 1.0));
    assert!([800, 2000].iter().all(|&generated| bins.left(generated).is_infinite()));
    let mut q = [0.125; 8];
    // 50 and 150 as they are, all others at the cut.
    assert_eq!(bins.expected_until(&q, 240.0), (50.0 + 150.0 + 6.0 * 240.0) / 8.0);
    assert_eq!(bins.expected_until(&q, f32::INFINITY), bins.expected(&q));
    bins.cut(&mut q, 299.0);
    assert_eq!(q, [0.125, 0.125, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0]);
    bins.cut(&mut q, f32::INFINITY);
    assert_eq!(q[2], 0.75);
}
