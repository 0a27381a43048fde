//! ptx/manifest.json: compiled modules, tool versions, flags and resource usage.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The whole file.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Manifest {
    /// Tool versions.
    pub(crate) tools: BTreeMap<String, String>,
    /// Flags by tool.
    pub(crate) flags: BTreeMap<String, Vec<String>>,
    /// Modules by name.
    pub(crate) modules: BTreeMap<String, Module>,
}

/// One source file.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct Module {
    pub(crate) source: String,
    /// FNV-1a of the source and its includes, hexadecimal.
    pub(crate) source_hash: String,
    /// Targets with a PTX text.
    pub(crate) ptx: Vec<String>,
    /// Targets with a cubin.
    pub(crate) cubin: Vec<String>,
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// One kernel.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct Entry {
    pub(crate) params: String,
    pub(crate) param_bytes: u32,
    pub(crate) param_align: u32,
    /// Resource usage by target.
    pub(crate) resources: BTreeMap<String, Resources>,
    /// Machine code by target.
    #[serde(default)]
    pub(crate) sass: BTreeMap<String, Sass>,
}

/// Machine code of a kernel on one target, from nvdisasm: counts of its hot loop with the loops
/// inside, unless said otherwise.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Sass {
    /// Instructions, without `NOP`.
    pub(crate) instructions: u32,
    /// Tensor core products of a warp.
    pub(crate) hmma: u32,
    /// Tensor core products of a warpgroup.
    pub(crate) hgmma: u32,
    /// Instructions, with `NOP`, before the first product of an iteration.
    #[serde(default)]
    pub(crate) lead: u32,
    /// Instructions from the first product of an iteration to the last.
    #[serde(default)]
    pub(crate) span: u32,
    /// Most instructions before the first product of an iteration, or between two in it.
    #[serde(default)]
    pub(crate) gap: u32,
    /// Loads from global memory to registers.
    pub(crate) ldg: u32,
    /// Copies from global to shared memory.
    pub(crate) ldgsts: u32,
    /// Loads of fragments from shared memory.
    pub(crate) ldsm: u32,
    /// Exponentials and other special functions, and those behind the loop's last wait for products
    /// of a warpgroup.
    #[serde(default)]
    pub(crate) mufu: u32,
    #[serde(default)]
    pub(crate) late_mufu: u32,
    /// Distinct scoreboards of weight loads: with one, a wait for the oldest waits for all.
    pub(crate) weight_scoreboards: u32,
    /// Waits for weights that were loaded since the last product, and for copies until none is
    /// pending.
    pub(crate) zero_waits: u32,
    /// Products that add to zeros or to what no product wrote: 0 where each sum is one chain, in
    /// the order of the loop.
    pub(crate) broken_sums: u32,
    /// Groups of copies that every wait for copies leaves pending.
    pub(crate) pending_groups: u32,
    /// Fences (`MEMBAR`) of the whole kernel, wider than a block's.
    pub(crate) fences: u32,
    /// Code of the longest loop.
    pub(crate) longest_loop_bytes: u32,
    /// Code of the whole kernel.
    pub(crate) text_bytes: u32,
}

/// Resource usage of a kernel on one target, from ptxas.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Resources {
    pub(crate) registers: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) spill_store_bytes: u32,
    pub(crate) spill_load_bytes: u32,
    pub(crate) barriers: u32,
}
