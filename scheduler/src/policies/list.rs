//! A doubly linked list of request indices.

use crate::request::RequestIdx;

/// A list whose links lie in arrays by index: every operation is O(1) and none allocates.
pub(crate) struct IndexList {
    /// (previous, next) of each index in the list, and of the head at the end; [`NONE`] outside.
    links: Vec<(u32, u32)>,
}

/// Link of an index that is not in the list.
const NONE: u32 = u32::MAX;

impl IndexList {
    /// An empty list of indices below `max_requests`.
    pub(crate) fn new(max_requests: u32) -> IndexList {
        let mut links = vec![(NONE, NONE); max_requests as usize + 1];
        links[max_requests as usize] = (max_requests, max_requests);
        IndexList { links }
    }

    /// Appends `idx`, which must not be in the list.
    pub(crate) fn push_back(&mut self, idx: RequestIdx) {
        debug_assert!(!self.contains(idx));
        let head = self.head();
        let last = self.links[head as usize].0;
        self.links[idx.index()] = (last, head);
        self.links[last as usize].1 = idx.0;
        self.links[head as usize].0 = idx.0;
    }

    /// Removes `idx`. Returns false if it was not in the list.
    pub(crate) fn remove(&mut self, idx: RequestIdx) -> bool {
        let (prev, next) = self.links[idx.index()];
        if next == NONE {
            return false;
        }
        self.links[prev as usize].1 = next;
        self.links[next as usize].0 = prev;
        self.links[idx.index()] = (NONE, NONE);
        true
    }

    /// The first index.
    pub(crate) fn front(&self) -> Option<RequestIdx> {
        let first = self.links[self.head() as usize].1;
        (first != self.head()).then_some(RequestIdx(first))
    }

    pub(crate) fn contains(&self, idx: RequestIdx) -> bool {
        self.links[idx.index()].1 != NONE
    }

    fn head(&self) -> u32 {
        (self.links.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trail_base::rng::Rng;

    #[test]
    fn agrees_with_a_vector() {
        let mut rng = Rng::new(3);
        let (mut list, mut model) = (IndexList::new(16), Vec::new());
        for _ in 0..if cfg!(miri) { 200 } else { 4000 } {
            let idx = RequestIdx(rng.below(16) as u32);
            assert_eq!(list.contains(idx), model.contains(&idx));
            if rng.below(2) == 0 && !list.contains(idx) {
                list.push_back(idx);
                model.push(idx);
            } else {
                assert_eq!(list.remove(idx), model.contains(&idx));
                model.retain(|&other| other != idx);
            }
            assert_eq!(list.front(), model.first().copied());
        }
    }
}
