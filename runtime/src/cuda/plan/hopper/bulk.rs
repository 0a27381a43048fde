//! Geometry of Hopper's products of few rows (kernels/hopper/bulk_*): grid, shares and so bits of
//! the plan by `skinny_*`, with other rings, and a warp that copies.

use crate::cuda::plan::gemm::{
    self, Epilogue, GemmPlan, Product, ROW_BYTES, SKINNY, SKINNY_STEP_BYTES,
};
use crate::cuda::plan::{Chip, LaunchPlan};

/// Threads of a block.
const THREADS: u32 = 288;
/// Steps of 16 along k of a stage of weights, in each half of the depth.
pub(in crate::cuda::plan) const STAGE_STEPS: usize = 2;
/// Bytes of a stage of weights, and of the ring's barriers.
const STAGE_BYTES: usize = STAGE_STEPS * SKINNY_STEP_BYTES;
const BARRIER_BYTES: usize = 128;
/// Stages of activations: two units ahead.
pub(in crate::cuda::plan) const ROW_STAGES: usize = 3;

/// A compiled instance.
pub(in crate::cuda::plan) struct Instance {
    /// Names by [`Epilogue`].
    pub(in crate::cuda::plan) kernels: [&'static str; 4],
    /// Stages of weights by [`Epilogue`].
    pub(in crate::cuda::plan) stages: [usize; 4],
    /// Tokens of a tile.
    pub(in crate::cuda::plan) tokens: usize,
}

/// One for each of [`SKINNY`]. Stages are as many as leave room for the plan's blocks on a
/// multiprocessor (two, at 64 rows one), at 8 rows for three: the next kernel's first block then
/// copies while this kernel ends. That is attention's behind qkv, which takes 97 KiB.
pub(in crate::cuda::plan) const INSTANCES: [Instance; 4] = [
    Instance {
        kernels: ["bulk_qkv_8", "bulk_residual_8", "bulk_swiglu_8", "bulk_logits_8"],
        stages: [3, 4, 4, 4],
        tokens: 8,
    },
    Instance {
        kernels: ["bulk_qkv_16", "bulk_residual_16", "bulk_swiglu_16", "bulk_logits_16"],
        stages: [5; 4],
        tokens: 16,
    },
    Instance {
        kernels: ["bulk_qkv_32", "bulk_residual_32", "bulk_swiglu_32", "bulk_logits_32"],
        stages: [4; 4],
        tokens: 32,
    },
    Instance {
        kernels: ["bulk_qkv_64", "bulk_residual_64", "bulk_swiglu_64", "bulk_logits_64"],
        stages: [8; 4],
        tokens: 64,
    },
];

impl Instance {
    /// Dynamic shared memory: stages and barriers, activations, sums, row scales.
    pub(in crate::cuda::plan) fn shared_bytes(&self, epilogue: Epilogue) -> usize {
        let rows = ROW_STAGES * SKINNY[0].depth * 2 + ROW_BYTES + 4;
        self.stages[epilogue as usize] * STAGE_BYTES + BARRIER_BYTES + self.tokens * rows
    }
}

/// The plan of `product` on a Hopper chip, with the bits of [`gemm::gemm`]'s; `None` above 64
/// rows.
pub fn gemm(chip: &Chip, product: Product) -> Option<GemmPlan> {
    let plan = gemm::gemm(chip, product);
    let is_its = |kernels: &[&str; 4]| kernels.contains(&plan.launch.kernel);
    let at = SKINNY.iter().position(|skinny| is_its(&skinny.kernels))?;
    let (instance, epilogue) = (&INSTANCES[at], product.epilogue);
    let launch = LaunchPlan {
        kernel: instance.kernels[epilogue as usize],
        block: THREADS,
        shared_bytes: instance.shared_bytes(epilogue) as u32,
        ..plan.launch
    };
    Some(GemmPlan { launch, ..plan })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::plan::{attention, resident};

    const ALL: [Epilogue; 4] =
        [Epilogue::Qkv, Epilogue::Residual, Epilogue::Swiglu, Epilogue::Logits];

    fn plan(epilogue: Epilogue, rows: usize) -> GemmPlan {
        let product = Product { epilogue, rows, features: 4096, width: 4096 };
        gemm(&Chip::H200, product).expect("a plan")
    }

    #[test]
    fn the_shares_are_those_of_the_portable_kernels() {
        for epilogue in ALL {
            for rows in 1..=64 {
                let product = Product { epilogue, rows, features: 4096, width: 4096 };
                let own = plan(epilogue, rows);
                let portable = gemm::gemm(&Chip::H200, product);
                let name = portable.launch.kernel.replace("skinny_", "bulk_");
                assert_eq!(own.launch.kernel, name);
                let LaunchPlan { kernel, block, shared_bytes, .. } = portable.launch;
                let launch = LaunchPlan { kernel, block, shared_bytes, ..own.launch };
                assert_eq!(GemmPlan { launch, ..own }, portable);
            }
            let many = Product { epilogue, rows: 65, features: 4096, width: 4096 };
            assert_eq!(gemm(&Chip::H200, many), None);
        }
    }

    /// As many blocks as the grid has a multiprocessor, and at 8 rows one more of the next kernel.
    #[test]
    fn blocks_have_room() {
        let chip = &Chip::H200;
        for epilogue in ALL {
            for (rows, blocks) in [(8, 3), (16, 2), (32, 2), (64, 1)] {
                let LaunchPlan { kernel, block, shared_bytes, .. } = plan(epilogue, rows).launch;
                assert_eq!(resident(chip, kernel, block, shared_bytes), Some(blocks), "{kernel}");
            }
        }
        // A row's attention beside both blocks of qkv.
        let heads = attention::Heads { kv_heads: 8, group: 4, head_dim: 128 };
        let launches =
            [plan(Epilogue::Qkv, 1).launch, attention::decode(chip, 1, heads, 1024).launch];
        let [qkv, attention] = launches.map(|launch| {
            let (_, entry) = trail_ptx::find(launch.kernel).unwrap();
            let found = entry.resources.iter().find(|found| Some(found.target) == chip.target);
            let found = found.unwrap();
            let registers = found.registers.next_multiple_of(8) * launch.block;
            [launch.shared_bytes + found.shared_bytes + 1024, registers]
        });
        assert!(2 * qkv[0] + attention[0] <= chip.shared_per_multiprocessor);
        assert!(2 * qkv[1] + attention[1] <= 65_536);
    }
}
