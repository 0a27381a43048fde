//! A doubly linked list of indices, for those that visit the oldest few instead of all.

use std::marker::PhantomData;

use crate::request::RequestIdx;

/// Link of an index that is not in the list.
const ABSENT: u32 = u32::MAX;

/// An index below the length of the list.
pub(crate) trait ListIndex: Copy {
    fn from_u32(index: u32) -> Self;
    fn to_u32(self) -> u32;
}

impl ListIndex for RequestIdx {
    fn from_u32(index: u32) -> RequestIdx {
        RequestIdx(index)
    }

    fn to_u32(self) -> u32 {
        self.0
    }
}

impl ListIndex for u32 {
    fn from_u32(index: u32) -> u32 {
        index
    }

    fn to_u32(self) -> u32 {
        self
    }
}

/// Indices in the order of insertion. The links are in arrays by index, so nothing is allocated
/// after construction, and every method takes constant time.
#[derive(Clone, Debug)]
pub(crate) struct IndexList<I> {
    /// `[index]`, and the head of the ring at the end.
    next: Vec<u32>,
    prev: Vec<u32>,
    len: usize,
    index: PhantomData<I>,
}

impl<I: ListIndex> IndexList<I> {
    /// An empty list for indices below `end`.
    pub(crate) fn new(end: u32) -> IndexList<I> {
        let mut links = vec![ABSENT; end as usize + 1];
        links[end as usize] = end;
        IndexList { next: links.clone(), prev: links, len: 0, index: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The index inserted first.
    pub(crate) fn front(&self) -> Option<I> {
        let first = self.next[self.head()];
        (first as usize != self.head()).then(|| I::from_u32(first))
    }

    /// Returns true if `idx` is in the list.
    pub(crate) fn contains(&self, idx: I) -> bool {
        self.next[idx.to_u32() as usize] != ABSENT
    }

    /// Inserts `idx` at the end; it must not be in the list.
    pub(crate) fn push_back(&mut self, idx: I) {
        debug_assert!(!self.contains(idx), "index {} is in the list", idx.to_u32());
        let head = self.head();
        let last = self.prev[head];
        self.link(last, idx.to_u32());
        self.link(idx.to_u32(), head as u32);
        self.len += 1;
    }

    /// Removes `idx`, if it is in the list.
    pub(crate) fn remove(&mut self, idx: I) {
        if !self.contains(idx) {
            return;
        }
        let at = idx.to_u32() as usize;
        self.link(self.prev[at], self.next[at]);
        (self.next[at], self.prev[at]) = (ABSENT, ABSENT);
        self.len -= 1;
    }

    fn link(&mut self, before: u32, after: u32) {
        self.next[before as usize] = after;
        self.prev[after as usize] = before;
    }

    fn head(&self) -> usize {
        self.next.len() - 1
    }
}

impl<I: ListIndex> Default for IndexList<I> {
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
            assert_eq!((list.front(), list.len()), (model.front().copied(), model.len()));
        }
        while let Some(idx) = model.pop_front() {
            assert_eq!(list.front(), Some(idx));
            list.remove(idx);
        }
        assert_eq!((list.front(), IndexList::<u32>::default().front()), (None, None));
    }
}
