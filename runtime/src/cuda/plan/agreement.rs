//! The constants that kernel sources and planner both state are equal: read from the .cu and .cuh
//! files, and compared with the planner's own.

use super::attention::split::{self, PrefillSplit};
use super::bench::{ceiling, ladder};
use super::gemm::Instance;
use super::hopper::{self, wgmma};
use super::{Chip, LaunchPlan, attention, gemm, megakernel, order, sampling, shuffle, step};
use crate::backend::{BLOCK_TOKENS, MAX_TOP_LOGPROBS};
use crate::model::Dtype;
use std::path::Path;

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Values of all `constexpr int NAME = ...` in `text`, in their order: one for each target where
/// there are several. Expressions are products, quotients and sums of literals and of constants
/// that come before.
fn constants(text: &str, name: &str) -> Vec<usize> {
    let mut known: Vec<(&str, usize)> = Vec::new();
    for statement in text.split("constexpr int ").skip(1) {
        let Some((declared, _)) = statement.split_once(';') else { continue };
        for one in declared.split(',') {
            let Some((left, right)) = one.split_once('=') else { continue };
            if let Some(value) = evaluate(right, &known) {
                known.push((left.trim(), value));
            }
        }
    }
    known.iter().filter(|(known, _)| *known == name).map(|(_, value)| *value).collect()
}

fn evaluate(expression: &str, known: &[(&str, usize)]) -> Option<usize> {
    let term = |text: &str| {
        let text = text.trim();
        let of_name =
            || known.iter().rev().find(|(name, _)| *name == text).map(|(_, value)| *value);
        text.parse().ok().or_else(of_name)
    };
    let product = |text: &str| {
        let mut quotients = text.split('/');
        let factors = quotients.next()?.split('*').map(term);
        let first = factors.product::<Option<usize>>()?;
        quotients.map(term).try_fold(first, |value, divisor| Some(value / divisor?))
    };
    expression.split('+').map(product).sum()
}

#[track_caller]
fn agree(file: &str, name: &str, planner: &str, values: &[usize]) {
    let found = constants(&source(file), name);
    assert_eq!(
        found, values,
        "kernels/{file} says {name} = {found:?}, runtime/src/cuda/plan/{planner} {values:?}"
    );
}

#[test]
fn a_source_is_read_as_a_compiler_would() {
    let text =
        "constexpr int A = 4, B = A * 32;\n  static constexpr int C = B / 2 + 4;\nint D = 1;";
    let read = ["A", "B", "C", "D"].map(|name| constants(text, name));
    assert_eq!(read, [vec![4], vec![128], vec![68], vec![]]);
    let both = "#if X\nconstexpr int S = 3;\n#else\nconstexpr int S = 2;\n#endif";
    assert_eq!(constants(both, "S"), [3, 2]);
}

#[test]
fn blocks_of_the_cache() {
    agree("common/paged.cuh", "BLOCK_TOKENS", "../../backend", &[BLOCK_TOKENS]);
    agree("common/epilogue.cuh", "BLOCK_TOKENS", "../../backend", &[BLOCK_TOKENS]);
}

#[test]
fn attention_geometry() {
    let block = attention::BLOCK as usize;
    agree("common/decode.cuh", "WARPS", "attention.rs WARPS", &[attention::WARPS]);
    agree("common/decode.cuh", "THREADS", "attention.rs BLOCK", &[block]);
    let stages = [attention::STAGES_HOPPER, attention::STAGES];
    agree("common/decode.cuh", "STAGES", "attention.rs STAGES", &stages);
    let prefill = "attention_prefill.cu";
    agree(prefill, "THREADS", "attention.rs BLOCK", &[block]);
    let queries = &[attention::TILE_QUERIES];
    agree("common/prefill.cuh", "QUERIES", "attention.rs TILE_QUERIES", queries);
    agree(prefill, "STAGES", "attention.rs PREFILL_STAGES", &[attention::PREFILL_STAGES]);
    let tokens = "TOKENS_OF = HD > 64 ? 32 : 64;";
    assert!(source(prefill).contains(tokens), "kernels/{prefill}: no `{tokens}`");
    assert_eq!([64, 128].map(attention::prefill_tile_tokens), [64, 32]);
    let own = "hopper/attention_wgmma.cu";
    let threads = hopper::attention::THREADS as usize;
    agree("hopper/pipeline.cuh", "THREADS", "hopper/attention.rs THREADS", &[threads]);
    agree(own, "TOKENS", "hopper/attention.rs TOKENS", &[hopper::attention::TOKENS]);
    agree(own, "STAGES", "hopper/attention.rs STAGES", &[hopper::attention::STAGES]);
    agree(own, "COLUMNS", "hopper/attention.rs COLUMNS", &[hopper::attention::COLUMNS]);
    let sizes = order::PARTITIONS.map(|(size, _)| size);
    for (name, size) in ["SMALL", "MIDDLE", "LARGE"].into_iter().zip(sizes) {
        agree("common/order.cuh", name, "order.rs PARTITIONS", &[size]);
    }
    let [(_, small), (_, middle), _] = order::PARTITIONS;
    agree("common/order.cuh", "MIDDLE_FROM", "order.rs PARTITIONS", &[small]);
    agree("common/order.cuh", "LARGE_FROM", "order.rs PARTITIONS", &[middle]);
    let merge = split::MERGE_BLOCK as usize;
    agree("attention_merge.cu", "THREADS", "attention/split.rs MERGE_BLOCK", &[merge]);
}

#[test]
fn megakernel_geometry() {
    // Its products are those of the kernels of 8 rows.
    let own = source("decode_megakernel.cu");
    let (_, rings) = own.split_once("SKINNY_RINGS(").unwrap();
    let of_8 = instance(&source("skinny_qkv.cu"), "skinny_qkv_8");
    let expected = of_8[1..5].iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    assert!(rings.starts_with(&expected), "decode_megakernel.cu: not SKINNY_RINGS({expected})");
    let rows = constants(&own, "TOKENS");
    assert!(rows[0] >= megakernel::MAX_ROWS, "decode_megakernel.cu: TOKENS {rows:?}");
}

#[test]
fn products_geometry() {
    agree("common/split_k.cuh", "FEATURES", "shuffle.rs FEATURES", &[shuffle::FEATURES]);
    agree("common/split_k.cuh", "ROW", "gemm.rs ROW_BYTES", &[gemm::ROW_BYTES / 4]);
    agree("common/split_k.cuh", "UNIT", "order.rs UNIT", &[order::UNIT]);
    let skinny = &gemm::SKINNY[0];
    agree("common/lane_ring.cuh", "THREADS", "gemm.rs skinny()", &[skinny.threads as usize]);
    agree("common/lane_ring.cuh", "DEPTH", "gemm.rs skinny()", &[skinny.depth]);
    let wide = "hopper/wgmma.cuh";
    agree(wide, "BOX", "hopper/wgmma.rs BOX", &[wgmma::BOX]);
    agree(wide, "DEPTH", "hopper/wgmma.rs DEPTH", &[wgmma::DEPTH]);
    agree(wide, "PASS", "hopper/wgmma.rs PASS", &[wgmma::PASS]);
    let threads = wgmma::THREADS as usize;
    agree("hopper/pipeline.cuh", "THREADS", "hopper/wgmma.rs THREADS", &[threads]);
}

/// Arguments of the macro that makes the kernel `name` in `text`, after its epilogue.
fn instance(text: &str, name: &str) -> Vec<usize> {
    let (_, rest) = text.split_once(&format!("({name},")).unwrap_or_else(|| panic!("no {name}"));
    let (arguments, _) = rest.split_once(')').unwrap();
    arguments.split(',').skip(1).map(|argument| argument.trim().parse().unwrap()).collect()
}

#[test]
fn instances_of_the_products() {
    let each = |instance: &Instance| instance.kernels.map(|kernel| (kernel, *instance));
    for (i, planned) in [&gemm::SKINNY, &gemm::SKINNY_HOPPER].into_iter().enumerate() {
        for (kernel, planned) in planned.iter().flat_map(each) {
            let file = &kernel[..kernel.rfind('_').unwrap()];
            // Tokens, stages of weights and of activations on either architecture, blocks.
            let found = instance(&source(&format!("{file}.cu")), kernel);
            let [tokens, .., blocks] = found[..] else { panic!("{kernel}: {found:?}") };
            assert_eq!([tokens, blocks], [planned.tokens, planned.blocks as usize], "{kernel}");
            let ring = found[1 + 2 * i] * gemm::SKINNY_STEP_BYTES
                + found[2 + 2 * i] * tokens * planned.depth * 2;
            let shared = ring.max(tokens * gemm::ROW_BYTES) + tokens * 4;
            assert_eq!(shared, planned.shared_bytes as usize, "{kernel}");
        }
    }
    for (kernel, planned) in gemm::TILED.iter().flat_map(each) {
        let file = &kernel[..kernel.rfind('_').unwrap()];
        // Tokens, depth, stages, blocks a multiprocessor.
        let found = instance(&source(&format!("{file}.cu")), kernel);
        let [tokens, depth, stages, blocks] = found[..] else { panic!("{kernel}: {found:?}") };
        assert_eq!([tokens, depth], [planned.tokens, planned.depth], "{kernel}");
        assert_eq!(blocks, planned.blocks as usize, "{kernel}");
        let ring = stages * (shuffle::FEATURES + tokens) * depth * 2;
        let shared = ring.max(tokens * gemm::ROW_BYTES) + tokens * 8;
        assert_eq!(shared, planned.shared_bytes as usize, "{kernel}");
    }
    for planned in wgmma::INSTANCES.into_iter().chain([wgmma::IN_CLUSTERS]) {
        for kernel in planned.kernels {
            let file = kernel[..kernel.rfind('_').unwrap()].trim_end_matches("_cluster");
            let found = instance(&source(&format!("hopper/{file}.cu")), kernel);
            assert_eq!(found, [planned.tokens, planned.stages], "{kernel}");
        }
    }
}

#[test]
fn small_kernels_geometry() {
    agree("probe.cu", "WARPS", "step.rs PROBE_BLOCK", &[step::PROBE_BLOCK as usize / 32]);
    agree("probe.cu", "ROWS", "step.rs PROBE_ROWS", &[step::PROBE_ROWS]);
    agree("probe.cu", "UNITS", "step.rs PROBE_UNITS", &[step::PROBE_UNITS]);
    agree("probe.cu", "DEPTH", "step.rs PROBE_DEPTH", &[step::PROBE_DEPTH]);
    agree("probe.cu", "STAGES", "step.rs PROBE_STAGES", &[step::PROBE_STAGES]);
    agree("embed.cu", "PART", "step.rs PART", &[step::PART]);
    let sum = "sampling.rs SUM_TOKENS";
    agree("common/sampling.cuh", "SUM_TOKENS", sum, &[sampling::SUM_TOKENS]);
    let choose = sampling::CHOOSE_BLOCK as usize;
    agree("common/select.cuh", "THREADS", "sampling.rs CHOOSE_BLOCK", &[choose]);
    agree("common/nucleus.cuh", "FEW", "sampling.rs FEW", &[sampling::FEW]);
    agree("common/select.cuh", "MAX_TOP", "../../backend MAX_TOP_LOGPROBS", &[MAX_TOP_LOGPROBS]);
}

/// A plan of every kernel of a step.
fn plans() -> Vec<LaunchPlan> {
    let chip = Chip::A100;
    let heads = attention::Heads { kv_heads: 2, group: 4, head_dim: 128 };
    let small = |group| attention::Heads { head_dim: 64, group, ..heads };
    let mut plans = vec![
        step::apply_diffs(9),
        step::embed(3, 256),
        step::tap_mean(1, 2, 256),
        sampling::token_counts(1, 1, 300),
        shuffle::shuffle(Dtype::Bf16, 128, 256),
        ceiling::read(&chip, 100),
        ceiling::mma(&chip, 1),
        attention::decode(&chip, 2, heads, 64).launch,
        attention::decode(&chip, 2, small(16), 64).launch,
        ladder::attention(1, 2, heads, 64),
        ladder::attention(2, 2, heads, 64),
    ];
    let cut = PrefillSplit { cut_tiles: 1, splits: 2 };
    for heads in [heads, small(4)] {
        for split in [PrefillSplit::WHOLE, cut] {
            plans.push(attention::prefill(heads, &split, 1, 2, 2));
            plans.extend(hopper::attention::prefill(&Chip::H200, heads, &split, 1, 2, 2));
            plans.extend(split.merge(heads));
        }
    }
    plans.extend(step::probe(4, 64, 32, 10));
    plans.extend(sampling::sampling(2, 300, 1).launches);
    for rows in [1, 16, 32, 64, 100, 4096] {
        let epilogue = gemm::Epilogue::Swiglu;
        let product = gemm::Product { epilogue, rows, features: 512, width: 256 };
        plans.push(gemm::gemm(&chip, product).launch);
        let own = wgmma::candidates(&Chip::H200, product);
        plans.extend(own.into_iter().map(|of| of.plan.launch));
    }
    plans
}

/// The entry of `kernel` in the PTX for `target`, if the target has its own.
fn entry(kernel: &str, target: &str) -> Option<String> {
    let (module, _) = trail_ptx::find(kernel).unwrap();
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ptx/out").join(target);
    let text = std::fs::read_to_string(out.join(module.name).with_extension("ptx")).ok()?;
    let (_, rest) = text.split_once(&format!(".entry {kernel}(")).unwrap();
    rest.split(".entry ").next().map(str::to_owned)
}

/// A kernel that may begin before its predecessor has ended waits for it in some block. One that
/// did not would let its successor read what its predecessor has not written: that one waits for
/// its direct predecessor alone.
#[test]
fn who_overlaps_waits() {
    let overlapping: Vec<_> = plans().into_iter().filter(|plan| plan.overlaps).collect();
    assert!(overlapping.len() > 8);
    for plan in overlapping {
        let text = entry(plan.kernel, "sm_90a").unwrap_or_default();
        assert!(text.contains("griddepcontrol.wait"), "{} does not wait", plan.kernel);
    }
}

/// A kernel in clusters is launched in columns of its cluster's size: the text says which.
#[test]
fn clusters_are_columns_of_the_grid() {
    let mut clustered = 0;
    for plan in plans() {
        let text = entry(plan.kernel, "sm_90a").unwrap_or_default();
        let cluster = format!(".reqnctapercluster 1, {}, 1", wgmma::CLUSTER);
        let is_in_clusters = text.contains(&cluster);
        assert_eq!(is_in_clusters, text.contains("cluster 1"), "{}", plan.kernel);
        let columns = if is_in_clusters { wgmma::CLUSTER } else { 1 };
        let is_product = plan.kernel.starts_with("wgmma_");
        assert!(!is_product || plan.grid[1] as usize == columns, "{plan}");
        clustered += usize::from(is_in_clusters);
    }
    assert!(clustered > 0, "no plan has a kernel in clusters");
}

/// No block is larger than its kernel's launch bounds, as the compiler wrote them into the PTX.
#[test]
fn blocks_keep_their_launch_bounds() {
    for plan in plans() {
        let text = entry(plan.kernel, "sm_80").or_else(|| entry(plan.kernel, "sm_90a")).unwrap();
        let (_, bounds) = text.split_once(".maxntid ").unwrap();
        let digits = bounds.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        let max: u32 = digits.parse().unwrap();
        assert!(plan.block <= max, "{}: launch bounds {max}, planned {}", plan.kernel, plan.block);
    }
}
