//! Register allocation. PTX is nearly in single-assignment form, thousands of registers for an
//! unrolled kernel; packed by their lifetimes a warp's registers stay in the L1 cache of the host.

use super::cfg::Blocks;
use super::program::{Inst, Slot};
use super::types::Class;

/// Rewrites the slots of `code`; `fixed` ones (presets) keep a place of their own. Gives the size
/// of each file.
pub(crate) fn allocate(code: &mut [Inst], blocks: &Blocks, fixed: &mut [Slot]) -> [usize; 3] {
    let lifetimes = lifetimes(code, blocks);
    let mut place = Vec::with_capacity(lifetimes.len());
    let mut sizes = [0; 3];
    for (class, ranges) in [Class::Narrow, Class::Wide, Class::Pred].into_iter().zip(&lifetimes) {
        let pinned: Vec<usize> =
            fixed.iter().filter(|slot| slot.class() == class).map(|slot| slot.index()).collect();
        let (mapping, size) = scan(ranges, &pinned);
        sizes[class_index(class)] = size;
        place.push(mapping);
    }
    let rewrite = |slot: &mut Slot| {
        let class = slot.class();
        *slot = Slot::new(class, place[class_index(class)].get(slot.index()).copied().unwrap_or(0));
    };
    for inst in code {
        let (targets, sources) = (usize::from(inst.targets), usize::from(inst.sources));
        inst.d[..targets].iter_mut().for_each(rewrite);
        inst.s[..sources].iter_mut().for_each(rewrite);
        inst.guard.iter_mut().for_each(rewrite);
        inst.accumulators.iter_mut().for_each(rewrite);
    }
    fixed.iter_mut().for_each(rewrite);
    sizes
}

fn class_index(class: Class) -> usize {
    match class {
        Class::Narrow => 0,
        Class::Wide => 1,
        Class::Pred => 2,
    }
}

/// First and last instruction of each register, by class; `None` when unused.
type Ranges = Vec<Option<(usize, usize)>>;

fn lifetimes(code: &[Inst], blocks: &Blocks) -> [Ranges; 3] {
    let mut ranges: [Ranges; 3] = Default::default();
    let mut touch = |slot: Slot, at: usize| {
        let file = &mut ranges[class_index(slot.class())];
        if file.len() <= slot.index() {
            file.resize(slot.index() + 1, None);
        }
        let range = file[slot.index()].get_or_insert((at, at));
        *range = (range.0.min(at), range.1.max(at));
    };
    for (at, inst) in code.iter().enumerate() {
        inst.targets()
            .iter()
            .chain(inst.sources())
            .chain(&inst.guard)
            .chain(&inst.accumulators)
            .for_each(|&slot| touch(slot, at));
    }
    let before = blocks.predecessors();
    for class in [Class::Narrow, Class::Wide, Class::Pred] {
        for (block, live) in live_in(code, blocks, &before, class).iter().enumerate() {
            // Alive at the start of a block is alive at the end of those before it.
            let ends = before[block].iter().map(|&before| blocks.ranges[before].1 - 1);
            for at in ends.chain([blocks.ranges[block].0]) {
                live.iter().for_each(|index| touch(Slot::new(class, index as u32), at));
            }
        }
    }
    ranges
}

/// Registers of `class` that are alive at the start of each block.
fn live_in(code: &[Inst], blocks: &Blocks, before: &[Vec<usize>], class: Class) -> Vec<Bits> {
    let count = code
        .iter()
        .flat_map(|inst| {
            inst.targets().iter().chain(inst.sources()).chain(&inst.guard).chain(&inst.accumulators)
        })
        .filter(|slot| slot.class() == class)
        .map(|slot| slot.index() + 1)
        .max()
        .unwrap_or(0);
    let (mut uses, mut kills) = (Vec::new(), Vec::new());
    for &(start, end) in &blocks.ranges {
        let (mut used, mut killed) = (Bits::new(count), Bits::new(count));
        for inst in &code[start..end] {
            let read = inst.sources().iter().chain(&inst.guard).chain(&inst.accumulators);
            for slot in read.filter(|slot| slot.class() == class) {
                if !killed.get(slot.index()) {
                    used.set(slot.index());
                }
            }
            for slot in inst.targets().iter().filter(|slot| slot.class() == class) {
                if inst.guard.is_none() {
                    killed.set(slot.index());
                } else if !killed.get(slot.index()) {
                    // The old value survives in the lanes whose guard fails.
                    used.set(slot.index());
                }
            }
        }
        uses.push(used);
        kills.push(killed);
    }
    let mut live = uses;
    // The last block first: most of its predecessors then see their successors' final sets.
    let mut pending: Vec<usize> = (0..blocks.ranges.len()).collect();
    let mut is_pending = vec![true; blocks.ranges.len()];
    while let Some(block) = pending.pop() {
        is_pending[block] = false;
        let mut out = Bits::new(count);
        blocks.successors[block].iter().for_each(|&next| {
            out.merge(&live[next]);
        });
        out.remove(&kills[block]);
        if live[block].merge(&out) {
            for &earlier in &before[block] {
                if !std::mem::replace(&mut is_pending[earlier], true) {
                    pending.push(earlier);
                }
            }
        }
    }
    live
}

/// Linear scan: the place of each register, and how many places there are.
fn scan(ranges: &Ranges, pinned: &[usize]) -> (Vec<u32>, usize) {
    let mut place = vec![0; ranges.len().max(pinned.iter().map(|&p| p + 1).max().unwrap_or(0))];
    let mut size = 0;
    for &register in pinned {
        place[register] = size;
        size += 1;
    }
    let mut order: Vec<usize> =
        (0..ranges.len()).filter(|r| ranges[*r].is_some() && !pinned.contains(r)).collect();
    order.sort_unstable_by_key(|&register| ranges[register].map(|range| range.0));
    let mut free: Vec<u32> = Vec::new();
    let mut busy: std::collections::BinaryHeap<std::cmp::Reverse<(usize, u32)>> =
        Default::default();
    for register in order {
        let Some((first, last)) = ranges[register] else { continue };
        while busy.peek().is_some_and(|top| top.0.0 < first) {
            free.extend(busy.pop().map(|top| top.0.1));
        }
        place[register] = free.pop().unwrap_or_else(|| {
            size += 1;
            size - 1
        });
        busy.push(std::cmp::Reverse((last, place[register])));
    }
    (place, size as usize)
}

/// A set of small numbers.
#[derive(Clone, PartialEq)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: usize) -> Bits {
        Bits(vec![0; count.div_ceil(64)])
    }

    fn set(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn get(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    fn merge(&mut self, other: &Bits) -> bool {
        let mut changed = false;
        for (word, &more) in self.0.iter_mut().zip(&other.0) {
            changed |= *word | more != *word;
            *word |= more;
        }
        changed
    }

    fn remove(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, &less)| *word &= !less);
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            // Each step clears the lowest bit.
            let words = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            words
                .take_while(|&word| word != 0)
                .map(move |word| at * 64 + word.trailing_zeros() as usize)
        })
    }
}
