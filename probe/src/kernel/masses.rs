//! The step of the token filter: masses of lengths, multiplied by the factors of their bins.
//!
//! A bin's states begin anywhere, so each block of 16 states is multiplied under a mask of the
//! bin's lanes; a block that two bins share is visited by both. Sums are of 16 lanes with every
//! instruction set, so that AVX2 and AVX-512 agree to the bit.

use trail_platform::Isa;
#[cfg(target_arch = "aarch64")]
use trail_platform::simd::Neon;
#[cfg(target_arch = "x86_64")]
use trail_platform::simd::{Avx2, Avx512};
use trail_platform::simd::{Portable, Simd};

use crate::line::LANES;

/// `LANES` zeros, ones, and zeros: a mask of lanes is read at an offset.
static MASKS: [f32; 3 * LANES] = {
    let mut masks = [0.0; 3 * LANES];
    let mut lane = LANES;
    while lane < 2 * LANES {
        masks[lane] = 1.0;
        lane += 1;
    }
    masks
};

/// States to be multiplied: all slices but `masses` are of whole blocks of 16.
pub(crate) struct MassUpdate<'a> {
    /// Masses of the states; changed in the bins alone.
    pub(crate) q: &'a mut [f32],
    /// Least mass of each state.
    pub(crate) floors: &'a [f32],
    /// Length of each state, tokens.
    pub(crate) values: &'a [f32],
    /// First state of each bin, ascending, and the end of the last `[bins + 1]`.
    pub(crate) edges: &'a [usize],
    /// `[bins]`.
    pub(crate) factors: &'a [f32],
    /// The new mass of each bin `[bins]`.
    pub(crate) masses: &'a mut [f32],
}

impl MassUpdate<'_> {
    /// Panics unless every state of a bin is in the slices, and every bin has a factor and a mass.
    fn check(&self) {
        let states = self.q.len();
        assert!(states.is_multiple_of(LANES));
        assert!(self.floors.len() == states && self.values.len() == states);
        assert!(self.edges.is_sorted() && self.edges.last().is_some_and(|&end| end <= states));
        let bins = self.edges.len() - 1;
        assert!(self.factors.len() == bins && self.masses.len() == bins);
    }
}

/// The step compiled for one instruction set. Holding one proves that the CPU has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MassKernel {
    /// Requires the CPU features of an instruction set, and operands that passed
    /// [`MassUpdate::check`].
    update: unsafe fn(MassUpdate<'_>) -> f32,
}

impl MassKernel {
    /// The kernel of `isa`; an error if this CPU cannot run it.
    pub(crate) fn select(isa: Isa) -> Result<MassKernel, String> {
        let update: unsafe fn(MassUpdate<'_>) -> f32 = match isa.resolve()? {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => update_avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => update_avx512,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => update_neon,
            _ => update_portable,
        };
        Ok(MassKernel { update })
    }

    /// Multiplies the states of each bin by its factor, above their floors, and sums them by bin.
    /// Returns the sum of masses times lengths.
    pub(crate) fn update(self, update: MassUpdate<'_>) -> f32 {
        update.check();
        // SAFETY: the operands were checked just now, the CPU features by `select`, the only place
        // that constructs a `MassKernel`.
        unsafe { (self.update)(update) }
    }
}

/// # Safety
///
/// As [`run`]; the CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn update_avx2(update: MassUpdate<'_>) -> f32 {
    // SAFETY: this function's contract is that of `run`.
    unsafe { run::<Avx2, 2>(update) }
}

/// # Safety
///
/// As [`run`]; the CPU has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn update_avx512(update: MassUpdate<'_>) -> f32 {
    // SAFETY: this function's contract is that of `run`.
    unsafe { run::<Avx512, 1>(update) }
}

/// # Safety
///
/// As [`run`]; the CPU has NEON.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn update_neon(update: MassUpdate<'_>) -> f32 {
    // SAFETY: this function's contract is that of `run`.
    unsafe { run::<Neon, 2>(update) }
}

/// # Safety
///
/// As [`run`].
unsafe fn update_portable(update: MassUpdate<'_>) -> f32 {
    // SAFETY: this function's contract is that of `run`.
    unsafe { run::<Portable, { LANES / Portable::LANES }>(update) }
}

/// The step in blocks of N registers.
///
/// # Safety
///
/// The operands passed [`MassUpdate::check`], and the CPU has the feature of V.
#[inline(always)]
unsafe fn run<V: Simd, const N: usize>(update: MassUpdate<'_>) -> f32 {
    const { assert!(N * V::LANES == LANES) };
    let MassUpdate { q, floors, values, edges, factors, masses } = update;
    let (q, floors, values) = (q.as_mut_ptr(), floors.as_ptr(), values.as_ptr());
    // SAFETY: by the caller's contract the CPU has V's feature, and all blocks of a bin's states
    // are in the three slices; a mask is read at most 2 LANES from the start of three times LANES.
    unsafe {
        let (zero, one) = (V::splat(0.0), V::splat(1.0));
        let mut moments = [zero; N];
        for (bin, mass) in masses.iter_mut().enumerate() {
            let (start, end) = (edges[bin], edges[bin + 1]);
            let factor = V::splat(factors[bin]);
            let mut sums = [zero; N];
            for block in (start / LANES * LANES..end).step_by(LANES) {
                let from = MASKS.as_ptr().add(LANES - start.saturating_sub(block));
                let until = MASKS.as_ptr().add(2 * LANES - (end - block).min(LANES));
                for part in 0..N {
                    let (lane, at) = (part * V::LANES, block + part * V::LANES);
                    let inside = V::load(from.add(lane)).mul(V::load(until.add(lane)));
                    let old = V::load(q.add(at));
                    let new = old.mul(factor).max(V::load(floors.add(at))).mul(inside);
                    new.add(old.mul(one.sub(inside))).store(q.add(at));
                    sums[part] = sums[part].add(new);
                    moments[part] = new.mul_add(V::load(values.add(at)), moments[part]);
                }
            }
            *mass = sum(sums);
        }
        sum(moments)
    }
}

/// The sum of 16 lanes, by halves.
#[inline(always)]
fn sum<V: Simd, const N: usize>(parts: [V; N]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (part, to) in parts.into_iter().zip(lanes.chunks_exact_mut(V::LANES)) {
        // SAFETY: `to` has a register's lanes.
        unsafe { part.store(to.as_mut_ptr()) };
    }
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use trail_platform::Rng;

    use super::*;

    const STATES: usize = 544;

    /// The loop, in f64: masses by state and by bin, and the moment.
    fn plain(update: &MassUpdate<'_>) -> (Vec<f64>, Vec<f64>, f64) {
        let mut q: Vec<f64> = update.q.iter().map(|&q| f64::from(q)).collect();
        let (mut masses, mut moment) = (Vec::new(), 0.0);
        for (bin, &factor) in update.factors.iter().enumerate() {
            let mut mass = 0.0;
            let states = update.edges[bin]..update.edges[bin + 1];
            for (q, state) in q[states.clone()].iter_mut().zip(states) {
                *q = (*q * f64::from(factor)).max(f64::from(update.floors[state]));
                mass += *q;
                moment += *q * f64::from(update.values[state]);
            }
            masses.push(mass);
        }
        (q, masses, moment)
    }

    #[test]
    fn every_instruction_set_is_the_plain_loop() {
        let mut rng = Rng::new(7);
        for round in 0..if cfg!(miri) { 3 } else { 200 } {
            let bins = 1 + rng.below(20) as usize;
            let mut edges: Vec<usize> =
                (0..=bins).map(|_| rng.below(STATES as u64 + 1) as usize).collect();
            edges.sort_unstable();
            let mut draw =
                |len: usize| -> Vec<f32> { (0..len).map(|_| rng.signed().abs()).collect() };
            let (before, floors) = (draw(STATES), draw(STATES));
            let (values, factors) = (draw(STATES), draw(bins));
            let mut results = Vec::new();
            for isa in Isa::available() {
                let (mut q, mut masses) = (before.clone(), vec![f32::NAN; bins]);
                let (edges, factors) = (&edges[..], &factors[..]);
                let (floors, values, masses) = (&floors[..], &values[..], &mut masses[..]);
                let update = MassUpdate { q: &mut q, floors, values, edges, factors, masses };
                let (exact, exact_masses, exact_moment) = plain(&update);
                let moment = MassKernel::select(isa).unwrap().update(update);
                // One product is rounded in each state, and sums of at most 544 in 16 lanes: 39
                // additions, each off by 2^-24 of the sum.
                let near = |found: f32, exact: f64| {
                    (f64::from(found) - exact).abs() <= exact * 42.0 * 2.0_f64.powi(-24)
                };
                let all = q.iter().zip(&exact).chain(masses.iter().zip(&exact_masses));
                assert!(all.clone().all(|(&f, &e)| near(f, e)), "{isa} in round {round}");
                assert!(near(moment, exact_moment), "{isa}: {moment}, not {exact_moment}");
                results.push((isa, q, masses.to_vec(), moment));
            }
            let fused = |isa| results.iter().find(|result| result.0 == isa);
            if let (Some(narrow), Some(wide)) = (fused(Isa::Avx2), fused(Isa::Avx512)) {
                assert_eq!((&narrow.1, &narrow.2, narrow.3), (&wide.1, &wide.2, wide.3));
            }
        }
    }
}
