//! A covering array of strength 3: rows of levels such that any three levels of three different
//! settings occur together in some row.

use std::collections::BTreeSet;

use crate::rng::Rng;

/// Candidates for a row: that with the largest number of new triples is taken.
const CANDIDATES: usize = 40;

/// Three settings with a level each, in order of the settings.
type Triple = [(usize, usize); 3];

/// Rows for settings with so many `levels`, the same for a seed. About twice the product of the
/// three largest numbers of levels.
pub fn array<const N: usize>(levels: &[usize; N], seed: u64) -> Vec<[usize; N]> {
    let mut rng = Rng::new(seed);
    let mut missing = all_triples(levels);
    let mut rows = Vec::new();
    while let Some(&first) = missing.first() {
        let candidate = |_| {
            let mut row = levels.map(|levels| rng.below(levels as u64) as usize);
            // At least one new triple.
            first.iter().for_each(|&(setting, level)| row[setting] = level);
            row
        };
        let candidates: Vec<[usize; N]> = (0..CANDIDATES).map(candidate).collect();
        let new = |row: &[usize; N]| triples(row).filter(|triple| missing.contains(triple)).count();
        let best = candidates.into_iter().max_by_key(new).expect("some candidates");
        triples(&best).for_each(|triple| {
            missing.remove(&triple);
        });
        rows.push(best);
    }
    rows
}

fn triples<const N: usize>(row: &[usize; N]) -> impl Iterator<Item = Triple> {
    let of = |a: usize, b: usize, c: usize| [a, b, c].map(|at| (at, row[at]));
    (0..N).flat_map(move |a| (a + 1..N).flat_map(move |b| (b + 1..N).map(move |c| of(a, b, c))))
}

fn all_triples<const N: usize>(levels: &[usize; N]) -> BTreeSet<Triple> {
    let mut all = BTreeSet::new();
    for a in 0..N {
        for b in a + 1..N {
            for c in b + 1..N {
                for (i, j, k) in (0..levels[a]).flat_map(|i| {
                    (0..levels[b]).flat_map(move |j| (0..levels[c]).map(move |k| (i, j, k)))
                }) {
                    all.insert([(a, i), (b, j), (c, k)]);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_triple_of_levels_occurs() {
        let levels = [2, 3, 2, 2, 3, 2, 3, 2];
        let rows = array(&levels, 1);
        let seen: BTreeSet<Triple> = rows.iter().flat_map(triples).collect();
        assert_eq!(seen, all_triples(&levels));
        assert!(rows.len() < 60, "{} rows", rows.len());
        assert!(rows.iter().all(|row| row.iter().zip(&levels).all(|(at, of)| at < of)));
        assert_eq!(array(&levels, 1), rows);
    }
}
