//! A doubly linked list of requests, for policies that visit the oldest few instead of all.

use crate::request::RequestIdx;

/// Link of a request that is not in the list.
const ABSENT: u32 = u32::MAX;

/// Requests in the order of insertion. The links are in arrays by index, so nothing is allocated
/// after construction, and every method takes constant time.
#[derive(Clone, Debug)]
pub(crate) struct IndexList {
    /// `[index]`, and the head of the ring at the end.
    next: Vec<u32>,
    prev: Vec<u32>,
}

impl IndexList {
    /// An empty list for indices below `max_requests`.
    pub(crate) fn new(max_requests: u32) -> IndexList {
        let mut links = vec![ABSENT; max_requests as usize + 1];
        links[max_requests as usize] = max_requests;
        IndexList { next: links.clone(), prev: links }
    }

    /// The request inserted first.
    pub(crate) fn front(&self) -> Option<RequestIdx> {
        let first = self.next[self.head()];
        (first as usize != self.head()).then_some(RequestIdx(first))
    }

    /// Returns true if `idx` is in the list.
    pub(crate) fn contains(&self, idx: RequestIdx) -> bool {
        self.next[idx.index()] != ABSENT
    }

    /// Inserts `idx` at the end; it must not be in the list.
    pub(crate) fn push_back(&mut self, idx: RequestIdx) {
        debug_assert!(!self.contains(idx), "index {} is in the list", idx.0);
        let head = self.head();
        let last = self.prev[head];
        self.link(last, idx.0);
        self.link(idx.0, head as u32);
    }

    /// Removes `idx`, if it is in the list.
    pub(crate) fn remove(&mut self, idx: RequestIdx) {
        if !self.contains(idx) {
            return;
        }
        self.link(self.prev[idx.index()], self.next[idx.index()]);
        (self.next[idx.index()], self.prev[idx.index()]) = (ABSENT, ABSENT);
    }

    fn link(&mut self, before: u32, after: u32) {
        self.next[before as usize] = after;
        self.prev[after as usize] = before;
    }

    fn head(&self) -> usize {
        self.next.len() - 1
    }
}

impl Default for IndexList {
    /// A list for no index, until [`crate::Policy::reserve`] is called.
    fn default() -> Self {
        IndexList::new(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use trail_platform::rng::Rng;

    #[test]
    fn equals_a_queue_under_random_operations() {
        const INDICES: u32 = 7;
        let mut rng = Rng::new(3);
        let (mut list, mut model) = (IndexList::new(INDICES), VecDeque::new());
        for _ in 0..if cfg!(miri) { 200 } else { 5000 } {
            let idx = RequestIdx(rng.below(INDICES as u64) as u32);
            assert_eq!(list.contains(idx), model.contains(&idx));
            if !model.contains(&idx) && rng.below(3) > 0 {
                list.push_back(idx);
                model.push_back(idx);
            } else {
                list.remove(idx);
                model.retain(|&other| other != idx);
            }
            assert_eq!(list.front(), model.front().copied());
        }
        while let Some(idx) = model.pop_front() {
            assert_eq!(list.front(), Some(idx));
            list.remove(idx);
        }
        assert_eq!((list.front(), IndexList::default().front()), (None, None));
    }
}
