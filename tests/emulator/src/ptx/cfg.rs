//! Basic blocks and post-dominators: where diverged lanes meet again.

use super::program::{Flow, Inst, NEVER};

/// Instructions `start..end` with the blocks that may follow; the last block is the virtual exit.
pub(crate) struct Blocks {
    pub(crate) ranges: Vec<(usize, usize)>,
    pub(crate) successors: Vec<Vec<usize>>,
    pub(crate) of: Vec<usize>,
}

/// Splits `code` at branches and their targets.
pub(crate) fn blocks(code: &[Inst], tables: &[Vec<u32>]) -> Blocks {
    let mut leader = vec![false; code.len() + 1];
    leader[0] = true;
    for (at, inst) in code.iter().enumerate() {
        let ends = match inst.flow {
            Flow::Branch { target, .. } => {
                leader[target as usize] = true;
                true
            }
            Flow::Indexed { table, .. } => {
                tables[table as usize].iter().for_each(|&target| leader[target as usize] = true);
                true
            }
            Flow::Exit | Flow::Trap => true,
            _ => false,
        };
        leader[at + 1] |= ends;
    }
    let starts: Vec<usize> = (0..code.len()).filter(|&at| leader[at]).collect();
    let mut of = vec![starts.len(); code.len() + 1];
    let mut ranges = Vec::new();
    for (block, &start) in starts.iter().enumerate() {
        let end = starts.get(block + 1).copied().unwrap_or(code.len());
        of[start..end].fill(block);
        ranges.push((start, end));
    }
    let exit = ranges.len();
    let mut successors: Vec<Vec<usize>> =
        ranges.iter().map(|&(_, end)| following(code, tables, &of, end - 1, exit)).collect();
    successors.push(Vec::new());
    ranges.push((code.len(), code.len()));
    Blocks { ranges, successors, of }
}

fn following(
    code: &[Inst],
    tables: &[Vec<u32>],
    of: &[usize],
    last: usize,
    exit: usize,
) -> Vec<usize> {
    let inst = &code[last];
    let mut next = match inst.flow {
        Flow::Branch { target, .. } => vec![of[target as usize]],
        Flow::Indexed { table, .. } => {
            tables[table as usize].iter().map(|&target| of[target as usize]).collect()
        }
        Flow::Exit => vec![exit],
        // It ends the launch: the lanes that pass it by need not meet those that do not.
        Flow::Trap => Vec::new(),
        _ => vec![of[last + 1]],
    };
    if inst.guard.is_some() && !next.contains(&of[last + 1]) {
        next.push(of[last + 1]);
    }
    next.sort_unstable();
    next.dedup();
    next
}

impl Blocks {
    /// For each block the blocks that it may follow.
    pub(crate) fn predecessors(&self) -> Vec<Vec<usize>> {
        let mut before = vec![Vec::new(); self.ranges.len()];
        for (block, successors) in self.successors.iter().enumerate() {
            successors.iter().for_each(|&next| before[next].push(block));
        }
        before
    }

    /// For each block its immediate post-dominator.
    fn immediate(&self) -> Vec<usize> {
        let exit = self.ranges.len() - 1;
        let before = self.predecessors();
        let order = reverse_postorder(&before, exit);
        let mut rank = vec![usize::MAX; exit + 1];
        order.iter().enumerate().for_each(|(at, &block)| rank[block] = at);
        let mut up = vec![usize::MAX; exit + 1];
        up[exit] = exit;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &order[1..] {
                let mut meet = usize::MAX;
                for &next in self.successors[block].iter().filter(|&&next| up[next] != usize::MAX) {
                    meet =
                        if meet == usize::MAX { next } else { intersect(&up, &rank, meet, next) };
                }
                changed |= up[block] != meet;
                up[block] = meet;
            }
        }
        up
    }

    /// First instruction of the block where the lanes that leave `block` in different ways meet.
    pub(crate) fn joins(&self) -> Vec<u32> {
        let exit = self.ranges.len() - 1;
        let up = self.immediate();
        // A block that never reaches the exit (an endless loop) has no post-dominator.
        up.iter()
            .map(|&b| if b == usize::MAX || b == exit { NEVER } else { self.ranges[b].0 as u32 })
            .collect()
    }
}

fn reverse_postorder(edges: &[Vec<usize>], root: usize) -> Vec<usize> {
    let mut seen = vec![false; edges.len()];
    let mut stack = vec![(root, 0)];
    let mut order = Vec::new();
    seen[root] = true;
    while let Some(&mut (block, ref mut at)) = stack.last_mut() {
        if let Some(&next) = edges[block].get(*at) {
            *at += 1;
            if !seen[next] {
                seen[next] = true;
                stack.push((next, 0));
            }
        } else {
            order.push(block);
            stack.pop();
        }
    }
    order.reverse();
    order
}

fn intersect(up: &[usize], rank: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while rank[a] > rank[b] {
            a = up[a];
        }
        while rank[b] > rank[a] {
            b = up[b];
        }
    }
    a
}
