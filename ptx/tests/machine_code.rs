//! Gates on the machine code of the checked-in kernels, from the report in the manifest: what the
//! source intends, and ptxas may undo. A limit is today's figure, so that no kernel gets worse
//! unseen; where a goal is lower, the kernel misses it, and the limit follows the next mend.

use serde_json::Value;

struct Gate {
    /// Beginning and end of the names of kernels.
    kernels: (&'static str, &'static str),
    key: &'static str,
    limit: f64,
    goal: f64,
}

const fn gate(
    kernels: (&'static str, &'static str),
    key: &'static str,
    limit: f64,
    goal: f64,
) -> Gate {
    Gate { kernels, key, limit, goal }
}

/// Bytes of the instruction cache that Volta to Ampere are known to have: a longer loop is fetched
/// again by every layer.
const INSTRUCTION_CACHE: f64 = 131_072.0;

const GATES: &[Gate] = &[
    // A fix-up, or a barrier of the grid, needs one fence.
    gate(("skinny_", ""), "fences", 1.0, 1.0),
    gate(("tiled_", ""), "fences", 1.0, 1.0),
    gate(("wgmma_", ""), "fences", 1.0, 1.0),
    gate(("attention_decode", ""), "fences", 1.0, 1.0),
    gate(("decode_megakernel", ""), "fences", 9.0, 9.0),
    // The order of summing: an accumulator is one chain along k.
    gate(("skinny_", ""), "broken_sums", 0.0, 0.0),
    gate(("tiled_", ""), "broken_sums", 0.0, 0.0),
    gate(("wgmma_", ""), "broken_sums", 0.0, 0.0),
    // No step waits for weights that are younger than its own.
    gate(("skinny_", ""), "zero_waits", 0.0, 0.0),
    // Keys and values are waited for apart, so that a ring of two stages is not empty at a wait.
    gate(("attention_decode", ""), "zero_waits", 0.0, 0.0),
    gate(("decode_megakernel", ""), "zero_waits", 0.0, 0.0),
    gate(("tiled_", ""), "zero_waits", 0.0, 0.0),
    gate(("wgmma_", ""), "zero_waits", 0.0, 0.0),
    gate(("tiled_", "_256"), "instructions_per_product", 1.95, 1.95),
    // A unit has half of the products of the tile of 256, and as many other instructions.
    gate(("tiled_", "_128"), "instructions_per_product", 2.18, 2.2),
    // Scores are put on a grid: an addition each.
    gate(("attention_prefill_split", ""), "instructions_per_product", 8.9, 8.9),
    // A third of all ends a partition, and is jumped over.
    gate(("attention_prefill_hd", ""), "instructions_per_product", 12.9, 12.9),
    gate(("wgmma_", ""), "instructions_per_product", 12.0, 11.0),
    // The arrival at both blocks of a cluster is one instruction: with the cluster's scope it would
    // be a fence of the device before each.
    gate(("wgmma_", "_cluster_256"), "instructions_per_product", 11.7, 10.7),
    gate(("wgmma_", "_cluster_256"), "fences", 1.0, 1.0),
    // Softmax of 64 tokens to 12 products at hd 128 and 8 at hd 64, with the multiplications of the
    // output that are jumped over while its reference stands; scores on a grid are 32 more.
    gate(("attention_wgmma", "_hd128"), "instructions_per_product", 29.5, 29.5),
    gate(("attention_wgmma_hd64", ""), "instructions_per_product", 38.2, 38.2),
    gate(("attention_wgmma_split_hd64", ""), "instructions_per_product", 38.3, 38.2),
    // All exponentials of a tile stand before the wait for the values of the tile before.
    gate(("attention_wgmma", ""), "late_mufu", 0.0, 0.0),
    gate(("attention_wgmma", ""), "zero_waits", 0.0, 0.0),
    gate(("decode_megakernel", ""), "longest_loop_bytes", 98_304.0, INSTRUCTION_CACHE),
    // Instructions in front of a unit's first product: copies, no search for the next tile.
    gate(("skinny_", ""), "lead", 100.0, 100.0),
];

/// Other limits of sm_120, by the beginning and end of kernels and key: its tiles take 0.8 more
/// instructions a product, moves of fragments, and no such device has said what they cost.
const SM_120: &[((&str, &str), &str, f64)] = &[
    (("tiled_", "_256"), "instructions_per_product", 2.8),
    (("tiled_", "_128"), "instructions_per_product", 3.0),
    (("attention_prefill_hd", ""), "instructions_per_product", 13.0),
];

impl Gate {
    fn limit_on(&self, target: &str) -> f64 {
        let other = SM_120.iter().find(|(kernels, key, _)| {
            target == "sm_120" && (*kernels, *key) == (self.kernels, self.key)
        });
        other.map_or(self.limit, |(.., limit)| *limit)
    }
}

fn figure(sass: &Value, key: &str) -> f64 {
    let count = |key: &str| sass[key].as_f64().unwrap_or_else(|| panic!("{key} in {sass}"));
    match key {
        "instructions_per_product" => count("instructions") / (count("hmma") + count("hgmma")),
        _ => count(key),
    }
}

/// Every kernel with the report of each target.
fn reports() -> Vec<(String, String, Value)> {
    let manifest: Value = serde_json::from_str(trail_ptx::MANIFEST).expect("JSON");
    let mut all = Vec::new();
    for module in trail_ptx::MODULES {
        for entry in module.entries {
            for resources in entry.resources {
                let (kernel, target) = (entry.name, resources.target.name());
                let entries = &manifest["modules"][module.name]["entries"];
                let sass = entries[kernel]["sass"][target].clone();
                assert!(sass.is_object(), "{kernel} has no report for {target}: run `compile`");
                all.push((kernel.to_owned(), target.to_owned(), sass));
            }
        }
    }
    all
}

#[test]
fn kernels_pass_the_gates_on_their_machine_code() {
    let reports = reports();
    for gate in GATES {
        let Gate { kernels: (begin, end), key, goal, .. } = gate;
        let of_gate: Vec<_> = reports
            .iter()
            .filter(|(kernel, ..)| kernel.starts_with(begin) && kernel.ends_with(end))
            .collect();
        assert!(!of_gate.is_empty(), "no kernel {begin}*{end}");
        let mut highest = 0.0f64;
        for (kernel, target, sass) in of_gate {
            let found = figure(sass, key);
            let limit = gate.limit_on(target);
            assert!(found <= limit, "{kernel} on {target}: {key} {found}, at most {limit}");
            highest = highest.max(found);
        }
        if highest > *goal {
            println!("{begin}*{end}: {key} is up to {highest}, goal {goal}");
        }
    }
}

/// Registers that warpgroups take and give (`setmaxnreg`) are no more than those of the launch: of
/// three warpgroups two take, and would wait without bound.
#[test]
fn register_hand_overs_fit() {
    let mut found = 0;
    for module in trail_ptx::MODULES.iter().filter(|of| of.name.starts_with("hopper/")) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/out/sm_90a");
        let text = std::fs::read_to_string(format!("{folder}/{}.ptx", module.name)).expect("PTX");
        let largest = |manner: &str| -> u32 {
            let instruction = format!("setmaxnreg.{manner}.sync.aligned.u32");
            let counts = text.split(&instruction).skip(1).map(|rest| {
                let count = rest.split(';').next().expect("a count");
                count.trim().parse::<u32>().expect("a number")
            });
            counts.max().unwrap_or_else(|| panic!("{}: {instruction}", module.name))
        };
        let sum = largest("dec") + 2 * largest("inc");
        for resources in module.entries.iter().flat_map(|entry| entry.resources) {
            assert!(sum <= 3 * resources.registers, "{}: {sum} registers", module.name);
            found += 1;
        }
    }
    assert!(found >= 13, "{found} kernels");
}

/// Bytes of weights in flight on a multiprocessor, by the groups that the waits of the machine code
/// leave pending: 4 KiB a group and block.
#[test]
fn weights_in_flight_cover_the_latency_of_memory() {
    for (kernel, target, sass) in reports() {
        if !kernel.starts_with("skinny_") {
            continue;
        }
        let blocks = if target == "sm_90a" { 2.0 } else { 3.0 };
        let in_flight = figure(&sass, "pending_groups") * 4.0 * blocks;
        assert!(in_flight >= 72.0, "{kernel} on {target}: {in_flight} KiB in flight");
    }
}

/// The products of a tile's scores and those of the values before it are issued one behind another:
/// what stands between them is addresses.
#[test]
fn products_of_attention_by_wgmma_are_close() {
    for (kernel, target, sass) in reports() {
        if kernel.starts_with("attention_wgmma") {
            let [span, products] = ["span", "hgmma"].map(|key| figure(&sass, key));
            assert!(span <= 4.9 * products, "{kernel} on {target}: {span} for {products}");
        }
    }
}

#[test]
fn the_report_counts_the_whole_machine_code() {
    for (kernel, target, sass) in reports() {
        let [text, longest_loop] =
            ["text_bytes", "longest_loop_bytes"].map(|key| figure(&sass, key));
        assert!(text >= 256.0 && longest_loop <= text, "{kernel} on {target}: {sass}");
        assert!(figure(&sass, "instructions") > 0.0, "{kernel} on {target}: {sass}");
    }
}
