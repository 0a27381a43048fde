//! Special registers and constants: filled in before a warp starts.

use super::grid::Grid;
use super::lanes::LANES;
use super::warp::Warp;
use crate::ptx::program::{LaneMask, Preset, Special};
use crate::ptx::types::Class;

/// Fills a warp's presets.
pub(crate) fn preset(warp: &mut Warp, grid: &Grid, block: [u32; 3]) {
    for &(slot, preset) in &grid.kernel.presets {
        match (slot.class(), preset) {
            (Class::Pred, Preset::Value(value)) => {
                warp.registers.preds[slot.index()] = if value == 0 { 0 } else { u32::MAX }
            }
            (Class::Wide, Preset::Value(value)) => {
                warp.registers.wide[slot.index()] = [value; LANES]
            }
            (_, Preset::Value(value)) => {
                warp.registers.narrow[slot.index()] = [value as u32; LANES]
            }
            (class, Preset::Special(special)) => {
                let values: [u32; LANES] =
                    std::array::from_fn(|lane| value(special, warp.number, lane, grid, block));
                match class {
                    Class::Wide => warp.registers.wide[slot.index()] = values.map(u64::from),
                    _ => warp.registers.narrow[slot.index()] = values,
                }
            }
        }
    }
}

fn value(special: Special, warp: usize, lane: usize, grid: &Grid, block: [u32; 3]) -> u32 {
    let of_cluster = |axis: u8| grid.kernel.cluster[usize::from(axis)];
    match special {
        Special::Tid(axis) => grid.thread(warp, lane)[usize::from(axis)],
        Special::Ntid(axis) => grid.threads[usize::from(axis)],
        Special::Ctaid(axis) => block[usize::from(axis)],
        Special::Nctaid(axis) => grid.blocks[usize::from(axis)],
        Special::ClusterId(axis) => block[usize::from(axis)] / of_cluster(axis),
        Special::ClusterCount(axis) => grid.blocks[usize::from(axis)] / of_cluster(axis),
        Special::ClusterCtaid(axis) => block[usize::from(axis)] % of_cluster(axis),
        Special::ClusterNctaid(axis) => of_cluster(axis),
        Special::ClusterRank => grid.rank(block),
        Special::ClusterRanks => grid.ranks() as u32,
        Special::Lane => lane as u32,
        Special::Warp => warp as u32,
        Special::WarpCount => grid.block_threads().div_ceil(LANES as u32),
        Special::LaneMask(LaneMask::Eq) => 1 << lane,
        Special::LaneMask(LaneMask::Le) => u32::MAX >> (31 - lane),
        Special::LaneMask(LaneMask::Lt) => (1 << lane) - 1,
        Special::LaneMask(LaneMask::Ge) => u32::MAX << lane,
        Special::LaneMask(LaneMask::Gt) => {
            (u32::MAX << lane) << 1 & if lane == 31 { 0 } else { u32::MAX }
        }
        Special::Sm => (grid.flat(block) % u64::from(grid.sms.max(1))) as u32,
        Special::SmCount => grid.sms,
        Special::GridId => grid.number as u32,
        Special::DynamicShared => grid.dynamic_shared,
        Special::TotalShared => grid.kernel.static_shared as u32 + grid.dynamic_shared,
    }
}

/// `%clock`, `%globaltimer`: nanoseconds of the host, shifted right by `imm`.
pub(crate) fn clock(cx: &mut super::Cx<'_>, i: &crate::ptx::program::Inst, mask: u32) {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64)
        >> i.imm;
    match i.d[0].class() {
        Class::Wide => {
            super::memory::blend(&mut cx.warp.registers.wide[i.d[0].index()], &[now; LANES], mask)
        }
        _ => super::memory::blend(
            &mut cx.warp.registers.narrow[i.d[0].index()],
            &[now as u32; LANES],
            mask,
        ),
    }
}

/// `d = s + imm`: addresses between windows, folded offsets.
pub(crate) fn offset(cx: &mut super::Cx<'_>, i: &crate::ptx::program::Inst, mask: u32) {
    let by = i.imm;
    match i.d[0].class() {
        Class::Wide => super::lanes::map1::<u64, u64>(cx, i, mask, |a| a.wrapping_add_signed(by)),
        _ => super::lanes::map1::<u32, u32>(cx, i, mask, |a| a.wrapping_add(by as u32)),
    }
}

/// `mov.b64 {a, b}, c`: parts of `imm` bits, lowest first.
pub(crate) fn unpack(cx: &mut super::Cx<'_>, i: &crate::ptx::program::Inst, mask: u32) {
    let registers = &mut cx.warp.registers;
    let whole: [u64; LANES] = match i.s[0].class() {
        Class::Wide => registers.wide[i.s[0].index()],
        _ => registers.narrow[i.s[0].index()].map(u64::from),
    };
    let ones = u64::MAX >> (64 - i.imm);
    for (part, &slot) in i.targets().iter().enumerate() {
        let values = whole.map(|word| (word >> (part as i64 * i.imm) & ones) as u32);
        super::memory::blend(&mut registers.narrow[slot.index()], &values, mask);
    }
}

/// `mov.b64 c, {a, b}`
pub(crate) fn pack(cx: &mut super::Cx<'_>, i: &crate::ptx::program::Inst, mask: u32) {
    let registers = &mut cx.warp.registers;
    let ones = u64::MAX >> (64 - i.imm);
    let mut whole = [0u64; LANES];
    for (part, &slot) in i.sources().iter().enumerate() {
        let values = &registers.narrow[slot.index()];
        for lane in 0..LANES {
            whole[lane] |= (u64::from(values[lane]) & ones) << (part as i64 * i.imm);
        }
    }
    match i.d[0].class() {
        Class::Wide => super::memory::blend(&mut registers.wide[i.d[0].index()], &whole, mask),
        _ => super::memory::blend(
            &mut registers.narrow[i.d[0].index()],
            &whole.map(|word| word as u32),
            mask,
        ),
    }
}

/// `isspacep`
pub(crate) fn is_space(cx: &mut super::Cx<'_>, i: &crate::ptx::program::Inst, mask: u32) {
    let addresses = cx.warp.registers.wide[i.s[0].index()];
    let inside = |lane: usize| super::memory::classify(addresses[lane]).0 == i.access.space;
    let bits = (0..LANES).filter(|&lane| inside(lane)).fold(0, |bits, lane| bits | 1 << lane);
    cx.warp.registers.set_pred(i.d[0], bits, mask);
}

/// `membar`, `fence`, for other blocks too.
pub(crate) fn fence(cx: &mut super::Cx<'_>, _: &crate::ptx::program::Inst, _: u32) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    cx.order.fence();
    cx.shared.fence(cx.warp.number);
}

/// `membar.cta`, `fence...cta`: the interpreter runs a block's warps on one host thread.
pub(crate) fn block_fence(_: &mut super::Cx<'_>, _: &crate::ptx::program::Inst, _: u32) {}

/// `griddepcontrol.wait`
pub(crate) fn wait_for_launches(cx: &mut super::Cx<'_>, _: &crate::ptx::program::Inst, _: u32) {
    cx.warp.waited = true;
}

/// `griddepcontrol.launch_dependents`
pub(crate) fn let_successor(cx: &mut super::Cx<'_>, _: &crate::ptx::program::Inst, _: u32) {
    if !cx.warp.waited {
        cx.grid.releases_early.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Prefetches and other instructions without a result.
pub(crate) fn nothing(_: &mut super::Cx<'_>, _: &crate::ptx::program::Inst, _: u32) {}
