//! Work items of a parallel region, claimed one by one.
//!
//! Where threads are pinned to CPUs of several NUMA nodes, each node has a range of the items, as
//! large as its share of the threads, and its threads claim those first. The same part of every
//! region so runs where its weights were touched first; a thread whose node has no item left takes
//! those of others.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use trail_platform::Cpu;

/// The items of one region after the other.
pub(super) struct Claims {
    /// Index of each worker's node among those in use `[workers]`.
    node_of: Vec<usize>,
    /// Items of the current region by node.
    nodes: Vec<CachePadded<NodeItems>>,
}

/// The items of a region that the workers of a node claim first.
#[derive(Default)]
struct NodeItems {
    /// Number of workers on the node and on those before it.
    workers: usize,
    /// The first item that was not claimed.
    next: AtomicUsize,
    end: usize,
}

impl Claims {
    /// Of `workers` workers, on `cpus` where they are pinned.
    pub(super) fn new(workers: usize, cpus: &[Cpu]) -> Claims {
        let mut used: Vec<usize> = cpus.iter().map(|cpu| cpu.node).collect();
        used.sort_unstable();
        used.dedup();
        let index = |worker: usize| {
            cpus.get(worker).map_or(0, |cpu| used.partition_point(|&node| node < cpu.node))
        };
        let node_of: Vec<usize> = (0..workers).map(index).collect();
        let node = |index: usize| {
            let workers = node_of.iter().filter(|&&other| other <= index).count();
            CachePadded::new(NodeItems { workers, ..NodeItems::default() })
        };
        Claims { nodes: (0..used.len().max(1)).map(node).collect(), node_of }
    }

    /// Number of nodes in use; 1 where workers are not pinned.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The first worker of `node`.
    pub(super) fn worker_of(&self, node: usize) -> usize {
        self.node_of.iter().position(|&of| of == node).expect("each node in use has a worker")
    }

    /// Begins a region of `items` items.
    pub(super) fn begin(&mut self, items: usize) {
        let mut first = 0;
        for node in &mut self.nodes {
            *node.next.get_mut() = first;
            node.end = items * node.workers / self.node_of.len();
            first = node.end;
        }
    }

    /// Claims an item for `worker`; `None` if none is left.
    #[inline]
    pub(super) fn claim(&self, worker: usize) -> Option<usize> {
        let (others, own) = self.nodes.split_at(self.node_of[worker]);
        own.iter().chain(others).find_map(|node| {
            let item = node.next.fetch_add(1, Ordering::Relaxed);
            (item < node.end).then_some(item)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items in the order in which `worker` alone claims them.
    fn order(claims: &mut Claims, items: usize, worker: usize) -> Vec<usize> {
        claims.begin(items);
        std::iter::from_fn(|| claims.claim(worker)).collect()
    }

    #[test]
    fn without_nodes_items_are_claimed_in_order() {
        let mut claims = Claims::new(3, &[]);
        for items in [0, 1, 5] {
            assert_eq!(order(&mut claims, items, 2), (0..items).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_worker_takes_the_items_of_its_node_first() {
        let cpu = |id, node| Cpu { id, core: id, node };
        // Two workers on node 2, one on node 5.
        let mut claims = Claims::new(3, &[cpu(0, 2), cpu(1, 5), cpu(2, 2)]);
        assert_eq!(order(&mut claims, 6, 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(order(&mut claims, 6, 1), [4, 5, 0, 1, 2, 3]);
        assert_eq!(order(&mut claims, 1, 0), [0]);
        assert!(order(&mut claims, 0, 1).is_empty());
        assert_eq!([0, 1].map(|node| claims.worker_of(node)), [0, 1]);
        claims.begin(6);
        assert_eq!([1, 2, 1, 1].map(|worker| claims.claim(worker)), [4, 0, 5, 1].map(Some));
    }
}
