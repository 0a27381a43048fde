//! Instructions by which the lanes of a warp talk: shuffles, votes, matches, reductions. All name
//! the lanes that must take part; a lane that is named and not there is a finding.

use super::Cx;
use super::lanes::{LANES, Lane, lanes};
use crate::ptx::program::{Handler, Inst};
use crate::ptx::types::Ty;
use crate::report::Kind;

/// Checks that the lanes named by source `at` are the ones that execute. Exited lanes may be named.
fn members(cx: &mut Cx<'_>, i: &Inst, at: usize, mask: u32) -> bool {
    let named = cx.warp.registers.narrow[i.s[at].index()];
    let first = mask.trailing_zeros() as usize;
    for lane in lanes(mask) {
        let missing = named[lane] & cx.warp.live & !mask;
        if named[lane] >> lane & 1 == 0 {
            let detail =
                format!("the member mask {:#010x} does not name the lane itself", named[lane]);
            cx.fault(Kind::BarrierDivergence, lane, detail);
            return false;
        }
        if missing != 0 {
            let detail = format!(
                "the member mask {:#010x} names lanes {missing:#010x}, which are elsewhere",
                named[lane]
            );
            cx.fault(Kind::BarrierDivergence, first, detail);
            return false;
        }
    }
    true
}

/// `bar.warp.sync`
pub(crate) fn warp_sync(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if members(cx, i, 0, mask) {
        cx.shared.tick(cx.warp.number);
    }
}

/// `shfl.sync.mode d|p, a, b, c, members`
pub(crate) fn shuffle(mode: &str) -> Option<Handler> {
    // From a lane, `b`, the segment's lowest lane, the bound and the segment mask: the lane to
    // read, if it is inside.
    Some(match mode {
        "up" => |cx, i, mask| {
            shuffled(cx, i, mask, |at| inside(at.lane - at.b, at.lane - at.b >= at.bound))
        },
        "down" => |cx, i, mask| {
            shuffled(cx, i, mask, |at| inside(at.lane + at.b, at.lane + at.b <= at.bound))
        },
        "bfly" => |cx, i, mask| {
            shuffled(cx, i, mask, |at| inside(at.lane ^ at.b, at.lane ^ at.b <= at.bound))
        },
        "idx" => |cx, i, mask| {
            shuffled(cx, i, mask, |at| {
                let source = at.low | at.b & !at.segment;
                inside(source, source <= at.bound)
            });
        },
        _ => return None,
    })
}

/// Operands of one lane of a shuffle.
struct Shuffle {
    lane: i32,
    b: i32,
    /// Bits of the lane number that all lanes of a segment share.
    segment: i32,
    low: i32,
    /// Highest lane of the segment (for `up`: lowest).
    bound: i32,
}

fn inside(lane: i32, yes: bool) -> Option<usize> {
    yes.then_some((lane & 31) as usize)
}

fn shuffled(cx: &mut Cx<'_>, i: &Inst, mask: u32, source: impl Fn(Shuffle) -> Option<usize>) {
    if !members(cx, i, 3, mask) {
        return;
    }
    let a = u32::read(&cx.warp.registers, i.s[0]);
    let b = u32::read(&cx.warp.registers, i.s[1]);
    let c = u32::read(&cx.warp.registers, i.s[2]);
    let mut values = a;
    let mut ok = 0;
    for lane in lanes(mask) {
        let segment = (c[lane] >> 8 & 31) as i32;
        let low = lane as i32 & segment;
        let bound = low | (c[lane] & 31) as i32 & !segment;
        let Some(from) =
            source(Shuffle { lane: lane as i32, b: (b[lane] & 31) as i32, segment, low, bound })
        else {
            continue;
        };
        ok |= 1 << lane;
        if mask >> from & 1 == 0 {
            return cx.fault(
                Kind::BarrierDivergence,
                lane,
                format!("reads lane {from}, which does not take part"),
            );
        }
        values[lane] = a[from];
    }
    u32::write(&mut cx.warp.registers, i.d[0], &values, mask);
    if i.targets > 1 {
        cx.warp.registers.set_pred(i.d[1], ok, mask);
    }
}

/// `vote.sync.mode d, p, members`
pub(crate) fn vote(mode: &str) -> Option<Handler> {
    Some(match mode {
        "ballot" => |cx, i, mask| {
            let Some(bits) = voted(cx, i, mask) else { return };
            u32::write(&mut cx.warp.registers, i.d[0], &[bits; LANES], mask);
        },
        "all" => |cx, i, mask| {
            voted(cx, i, mask).into_iter().for_each(|bits| decide(cx, i, mask, bits == mask))
        },
        "any" => |cx, i, mask| {
            voted(cx, i, mask).into_iter().for_each(|bits| decide(cx, i, mask, bits != 0))
        },
        "uni" => |cx, i, mask| {
            voted(cx, i, mask)
                .into_iter()
                .for_each(|bits| decide(cx, i, mask, bits == 0 || bits == mask))
        },
        _ => return None,
    })
}

fn voted(cx: &mut Cx<'_>, i: &Inst, mask: u32) -> Option<u32> {
    members(cx, i, 1, mask).then(|| cx.warp.registers.pred(i.s[0]) & mask)
}

fn decide(cx: &mut Cx<'_>, i: &Inst, mask: u32, yes: bool) {
    cx.warp.registers.set_pred(i.d[0], if yes { u32::MAX } else { 0 }, mask);
}

/// `activemask`
pub(crate) fn active_mask(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    u32::write(&mut cx.warp.registers, i.d[0], &[mask; LANES], mask);
}

/// `elect.sync d|p, members`
pub(crate) fn elect(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if members(cx, i, 0, mask) {
        let leader = mask.trailing_zeros();
        u32::write(&mut cx.warp.registers, i.d[0], &[leader; LANES], mask);
        if i.targets > 1 {
            cx.warp.registers.set_pred(i.d[1], 1 << leader, mask);
        }
    }
}

/// `match.sync.mode d{|p}, a, members`
pub(crate) fn matches(mode: &str, ty: Ty) -> Option<Handler> {
    Some(match (mode, ty) {
        ("any", Ty::B32) => |cx, i, mask| match_any::<u32>(cx, i, mask),
        ("any", Ty::B64) => |cx, i, mask| match_any::<u64>(cx, i, mask),
        ("all", Ty::B32) => |cx, i, mask| match_all::<u32>(cx, i, mask),
        ("all", Ty::B64) => |cx, i, mask| match_all::<u64>(cx, i, mask),
        _ => return None,
    })
}

fn match_any<T: Lane + PartialEq>(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if members(cx, i, 1, mask) {
        let a = T::read(&cx.warp.registers, i.s[0]);
        let same = |lane: usize| {
            lanes(mask)
                .filter(|&other| a[other] == a[lane])
                .fold(0, |bits, other| bits | 1 << other)
        };
        let values: [u32; LANES] = std::array::from_fn(same);
        u32::write(&mut cx.warp.registers, i.d[0], &values, mask);
    }
}

fn match_all<T: Lane + PartialEq>(cx: &mut Cx<'_>, i: &Inst, mask: u32) {
    if members(cx, i, 1, mask) {
        let a = T::read(&cx.warp.registers, i.s[0]);
        let first = a[mask.trailing_zeros() as usize];
        let all = lanes(mask).all(|lane| a[lane] == first);
        u32::write(&mut cx.warp.registers, i.d[0], &[if all { mask } else { 0 }; LANES], mask);
        if i.targets > 1 {
            cx.warp.registers.set_pred(i.d[1], if all { mask } else { 0 }, mask);
        }
    }
}

/// `redux.sync.op d, a, members`
pub(crate) fn redux(operation: &str, ty: Ty) -> Option<Handler> {
    macro_rules! fold {
        ($ty:ty, $f:expr) => {
            (|cx: &mut Cx<'_>, i: &Inst, mask: u32| reduced::<$ty>(cx, i, mask, $f)) as Handler
        };
    }
    Some(match (operation, ty) {
        ("add", Ty::U32 | Ty::S32) => fold!(u32, |a, b| a.wrapping_add(b)),
        ("min", Ty::U32) => fold!(u32, |a, b| a.min(b)),
        ("max", Ty::U32) => fold!(u32, |a, b| a.max(b)),
        ("min", Ty::S32) => fold!(i32, |a, b| a.min(b)),
        ("max", Ty::S32) => fold!(i32, |a, b| a.max(b)),
        ("and", Ty::B32) => fold!(u32, |a, b| a & b),
        ("or", Ty::B32) => fold!(u32, |a, b| a | b),
        ("xor", Ty::B32) => fold!(u32, |a, b| a ^ b),
        _ => return None,
    })
}

fn reduced<T: Lane>(cx: &mut Cx<'_>, i: &Inst, mask: u32, f: impl Fn(T, T) -> T) {
    if members(cx, i, 1, mask) {
        let a = T::read(&cx.warp.registers, i.s[0]);
        let all = lanes(mask).map(|lane| a[lane]).reduce(f).unwrap_or_default();
        T::write(&mut cx.warp.registers, i.d[0], &[all; LANES], mask);
    }
}
