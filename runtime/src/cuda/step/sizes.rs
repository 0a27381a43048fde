//! The numbers of rows that steps are padded to: a plan, and a graph, for each.

/// Numbers of decode rows that have plans and graphs; beyond the last every further 64.
const FIRST: [usize; 16] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256];
const FURTHER: usize = 64;

/// Ascending sizes; anything up to the last is padded to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes(Box<[usize]>);

impl Sizes {
    /// Sizes up to `most`, which is the last.
    pub(super) fn up_to(max: usize) -> Sizes {
        let further = (FIRST[FIRST.len() - 1]..max).step_by(FURTHER).skip(1);
        let all = FIRST.iter().copied().chain(further).take_while(|&size| size < max);
        Sizes(all.chain([max]).collect())
    }

    /// These sizes, with the same indices, and further ones up to `max`.
    pub(super) fn extended(&self, max: usize) -> Sizes {
        let more = Sizes::up_to(max.max(self.last()));
        let further = more.iter().filter(|&size| size > self.last());
        Sizes(self.iter().chain(further).collect())
    }

    /// The index of the smallest size that holds `count`, at least 1 and at most the last.
    pub(super) fn index(&self, count: usize) -> usize {
        self.0.partition_point(|&size| size < count)
    }

    pub(super) fn at(&self, index: usize) -> usize {
        self.0[index]
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn last(&self) -> usize {
        self.0[self.0.len() - 1]
    }

    /// Most rows of padding that any count gets.
    pub(super) fn max_padding(&self) -> usize {
        let gaps = self.0.windows(2).map(|pair| pair[1] - pair[0] - 1);
        gaps.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_the_next_size() {
        for max in [1, 2, 3, 16, 17, 255, 256, 257, 300, 1000, 8192] {
            let sizes = Sizes::up_to(max);
            assert_eq!(sizes.last(), max);
            assert!(sizes.0.is_sorted_by(|a, b| a < b), "{sizes:?}");
            for more in [0, 1, 32] {
                let extended = sizes.extended(max + more);
                assert_eq!(extended.0[..sizes.0.len()], sizes.0[..]);
                assert!(extended.last() == max + more && extended.0.is_sorted_by(|a, b| a < b));
            }
            for count in 1..=max {
                let size = sizes.at(sizes.index(count));
                assert!(size >= count && size - count <= sizes.max_padding());
                assert!(sizes.iter().all(|other| other < count || other >= size));
            }
        }
    }
}
