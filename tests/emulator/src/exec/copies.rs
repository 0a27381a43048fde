//! `cp.async`: copies from global to shared memory that arrive when they are waited for, or at
//! once, by seed. Either way the target counts as in flight until the thread that issued the copy
//! waits for it.

use super::Cx;
use super::global::Intent;
use super::lanes::{LANES, lanes};
use super::memory::addresses;
use crate::ptx::program::Inst;
use crate::ptx::types::Class;

/// Copies of a warp that were not waited for.
#[derive(Default)]
pub(crate) struct Pending {
    copies: Vec<Copy>,
    /// Groups each lane has committed.
    committed: [u32; LANES],
}

/// One lane's copy.
struct Copy {
    lane: u8,
    /// Bytes to fill, and the number that comes from memory; the rest is zero.
    bytes: u8,
    real: u8,
    group: u32,
    to: u32,
    from: u64,
    line: u32,
}

impl Pending {
    pub(crate) fn clear(&mut self) {
        self.copies.clear();
        self.committed = [0; LANES];
    }
}

/// `cp.async.ca.shared.global [s0], [s1], bytes{, s2}`: `access.bytes` is the size, `imm` and `d`
/// are not used; the offsets of both addresses are folded into their registers by decode.
pub(crate) fn copy(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let to = addresses(cx, i.s[0], 0);
    let from = addresses(cx, i.s[1], 0);
    let bytes = i.access.bytes;
    let real = if i.sources > 2 {
        cx.warp.registers.narrow[i.s[2].index()]
    } else {
        [u32::from(bytes); LANES]
    };
    // With an ignore-src predicate nothing is read.
    let ignored = if i.sources > 3 { cx.warp.registers.pred(i.s[3]) } else { 0 };
    for lane in lanes(mask) {
        let to = match to[lane].checked_sub(crate::memory::SHARED_WINDOW) {
            Some(inside) if i.s[0].class() == Class::Wide => inside,
            _ => to[lane],
        };
        if let Err((kind, detail)) =
            cx.shared.launch_copy(cx.shared.here(to), cx.warp.number, lane, u64::from(bytes))
        {
            return cx.fault(kind, lane, detail);
        }
        let real =
            if ignored >> lane & 1 == 1 { 0 } else { real[lane].min(u32::from(bytes)) as u8 };
        let group = cx.warp.pending.committed[lane];
        let copy = Copy {
            lane: lane as u8,
            bytes,
            real,
            group,
            to: to as u32,
            from: from[lane],
            line: i.line,
        };
        // The source is checked now, whenever the bytes move.
        if real > 0
            && let Err((kind, detail)) =
                cx.global(i.line, copy.from, u64::from(real), u64::from(bytes), Intent::Read)
        {
            return cx.fault(kind, lane, detail);
        }
        if !cx.grid.late_copies {
            arrive(cx, &copy);
        }
        cx.warp.pending.copies.push(copy);
    }
}

/// Moves the bytes.
fn arrive(cx: &mut Cx<'_>, copy: &Copy) {
    let (bytes, real) = (usize::from(copy.bytes), usize::from(copy.real));
    let to = copy.to as usize;
    if real > 0 {
        let from = match cx.global(copy.line, copy.from, real as u64, 1, Intent::Read) {
            Ok(from) => from,
            Err((kind, detail)) => return cx.fault(kind, usize::from(copy.lane), detail),
        };
        // SAFETY: `global` found `real` bytes there; the slice has as many.
        unsafe {
            std::ptr::copy_nonoverlapping(from, cx.shared.bytes()[to..to + real].as_mut_ptr(), real)
        };
    }
    cx.shared.bytes()[to + real..to + bytes].fill(0);
}

/// `cp.async.commit_group`
pub(crate) fn commit(cx: &mut Cx<'_>, _: &Inst, mask: u32) {
    lanes(mask).for_each(|lane| cx.warp.pending.committed[lane] += 1);
}

/// `cp.async.wait_group imm`; a negative `imm` is `wait_all`, which needs no commit.
pub(crate) fn wait(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    let mut copies = std::mem::take(&mut cx.warp.pending.copies);
    let committed = cx.warp.pending.committed;
    let warp = cx.warp.number;
    copies.retain(|copy| {
        let lane = usize::from(copy.lane);
        let due = i.imm < 0 || i64::from(copy.group) < i64::from(committed[lane]) - i.imm;
        if mask >> lane & 1 == 0 || !due {
            return true;
        }
        if cx.grid.late_copies {
            arrive(cx, copy);
        }
        cx.shared.land_copy(warp, u64::from(copy.to), u64::from(copy.bytes));
        false
    });
    cx.warp.pending.copies = copies;
}
