//! The requests outside the batch, kept in rank order.
//!
//! A skip list (Pugh 1990) over indices: links live in arrays by index, so nothing is allocated
//! after construction, insertion and removal take O(log n) comparisons, and the walk from the best,
//! or back from the worst, is one link per request. A sorted array would move half its entries per
//! insertion; a heap would not give the best few in order without a second one.

use crate::key::{Key, Ranked};
use crate::limits::ORDER_LEVELS;
use crate::request::RequestIdx;

/// Marks the end of a list: no request.
const NONE: u32 = u32::MAX;

/// Links from one node to its successor on each level.
type Tower = [u32; ORDER_LEVELS];

/// A request in the list: one cache line, as each step of a search goes to another one.
#[derive(Clone)]
#[repr(C, align(64))]
struct Node {
    key: Key,
    next: Tower,
    /// Predecessor on level 0.
    prev: u32,
}

const _: () = assert!(size_of::<Node>() == 64);

pub(crate) struct Order {
    /// `[index]`, and the list's head at the end, whose predecessor is the last node.
    nodes: Vec<Node>,
    len: usize,
    /// Levels in use: the walk down starts here.
    levels: usize,
}

impl Order {
    pub(crate) fn new(max_requests: u32) -> Order {
        let nodes = max_requests as usize + 1;
        let head = max_requests;
        let node = Node { key: Key::new(0, 0.0, 0), next: [NONE; ORDER_LEVELS], prev: NONE };
        let mut nodes = vec![node; nodes];
        nodes[head as usize].prev = head;
        Order { nodes, len: 0, levels: 1 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn key(&self, idx: RequestIdx) -> Key {
        self.nodes[idx.index()].key
    }

    /// The best ranked.
    pub(crate) fn first(&self) -> Option<Ranked> {
        self.ranked(self.nodes[self.head() as usize].next[0])
    }

    /// The worst ranked.
    pub(crate) fn last(&self) -> Option<Ranked> {
        self.ranked(self.nodes[self.head() as usize].prev)
    }

    /// The request ranked directly behind `idx`.
    pub(crate) fn next(&self, idx: RequestIdx) -> Option<Ranked> {
        self.ranked(self.nodes[idx.index()].next[0])
    }

    /// The request ranked directly before `idx`.
    pub(crate) fn prev(&self, idx: RequestIdx) -> Option<Ranked> {
        self.ranked(self.nodes[idx.index()].prev)
    }

    /// Inserts `idx`, which must not be in the order.
    pub(crate) fn insert(&mut self, idx: RequestIdx, key: Key) {
        let before = self.path_to(key);
        let node = idx.0;
        let height = height(node);
        self.levels = self.levels.max(height);
        self.nodes[idx.index()].key = key;
        for (level, &from) in before.iter().enumerate().take(height) {
            self.nodes[node as usize].next[level] = self.nodes[from as usize].next[level];
            self.nodes[from as usize].next[level] = node;
        }
        let after = self.nodes[node as usize].next[0];
        self.nodes[node as usize].prev = before[0];
        self.set_prev(after, node);
        self.len += 1;
    }

    /// Removes `idx`, which must be in the order.
    pub(crate) fn remove(&mut self, idx: RequestIdx) {
        let node = idx.0;
        let before = self.path_to(self.nodes[idx.index()].key);
        let tower = self.nodes[node as usize].next;
        debug_assert_eq!(
            self.nodes[before[0] as usize].next[0], node,
            "idx {node} is not in the order"
        );
        for (level, &from) in before.iter().enumerate().take(height(node)) {
            self.nodes[from as usize].next[level] = tower[level];
        }
        self.set_prev(tower[0], before[0]);
        self.len -= 1;
    }

    /// On each level, the last node ranked before `key`.
    fn path_to(&self, key: Key) -> Tower {
        let mut path = [self.head(); ORDER_LEVELS];
        let mut node = self.head();
        for level in (0..self.levels).rev() {
            loop {
                let after = self.nodes[node as usize].next[level];
                if after == NONE || self.nodes[after as usize].key >= key {
                    break;
                }
                node = after;
            }
            path[level] = node;
        }
        path
    }

    fn head(&self) -> u32 {
        (self.nodes.len() - 1) as u32
    }

    /// The head is the successor of the last node.
    fn set_prev(&mut self, node: u32, prev: u32) {
        let node = if node == NONE { self.head() } else { node };
        self.nodes[node as usize].prev = prev;
    }

    fn ranked(&self, node: u32) -> Option<Ranked> {
        if node == NONE || node == self.head() {
            return None;
        }
        Some(Ranked { key: self.nodes[node as usize].key, idx: RequestIdx(node) })
    }
}

/// Number of levels of an index's node: one node in four reaches each next level. Decided by a hash
/// of the index, which is independent of the rank.
fn height(idx: u32) -> usize {
    let coin = trail_platform::rng::mix(idx as u64);
    (1 + coin.trailing_zeros() as usize / 2).min(ORDER_LEVELS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use trail_platform::rng::Rng;

    #[test]
    fn agrees_with_a_btree_map() {
        let mut rng = Rng::new(7);
        let mut order = Order::new(64);
        let mut model = BTreeMap::new();
        for seq in 0..if cfg!(miri) { 100 } else { 4000 } {
            let idx = RequestIdx(rng.below(64) as u32);
            if model.values().any(|&s| s == idx) {
                model.remove(&order.key(idx));
                order.remove(idx);
            } else {
                let key = Key::new(0, rng.below(20) as f64, seq);
                model.insert(key, idx);
                order.insert(idx, key);
            }
            let walk = std::iter::successors(order.first(), |at| order.next(at.idx));
            assert!(walk.map(|at| (at.key, at.idx)).eq(model.iter().map(|(&k, &s)| (k, s))));
            let back = std::iter::successors(order.last(), |at| order.prev(at.idx));
            assert!(back.map(|at| at.idx).eq(model.values().rev().copied()));
            assert_eq!(order.len(), model.len());
        }
    }
}
