//! Listings as nvdisasm prints them: an address and a text, then the second word, which controls
//! the issue.

use super::*;

/// A line of a listing: an instruction that holds scoreboard `writes` and waits for `waits`.
fn line(address: u32, text: &str, writes: u64, waits: u64) -> String {
    let control = waits << 52 | writes << 46;
    format!("        /*{address:04x}*/   {text} ;   /* 0x0 */\n   /* {control:#018x} */\n")
}

/// A kernel with a setup loop and a loop over products that `middle` is part of.
fn listing(middle: &[(&str, u64, u64)]) -> String {
    let mut text = String::from("\t.section\t.text.other\n.text.other:\n");
    text += &line(0, "EXIT", 7, 0);
    text += "        .size x\n.text.kernel:\n.L_x_1:\n";
    text += &line(0, "LDG.E R0, [R2.64]", 0, 0);
    text += &line(0x10, "@P0 BRA `(.L_x_1)", 7, 0);
    text += ".L_x_2:\n";
    for (at, &(instruction, writes, waits)) in (2..).zip(middle) {
        text += &line(at * 16, instruction, writes, waits);
    }
    let end = 16 * (2 + middle.len() as u32);
    text += &line(end, "@!P1 BRA `(.L_x_2)", 7, 0);
    text += &line(end + 16, "MEMBAR.SC.GPU", 7, 0);
    text += &line(end + 32, "MEMBAR.ALL.CTA", 7, 0);
    text += ".L_x_3:\n";
    text + &line(end + 48, "BRA `(.L_x_3)", 7, 0)
}

const LOAD: &str = "LDG.E.NA.128.CONSTANT R16, desc[UR8][R2.64]";
const PRODUCT: &str = "HMMA.16816.F32.BF16 R104, R16, R96.reuse, R104";

fn kernel(middle: &[(&str, u64, u64)]) -> Sass {
    let kernels = parse(&listing(middle)).expect("a listing");
    assert_eq!(kernels.len(), 2);
    summary(&kernels["kernel"])
}

#[test]
fn the_loop_with_products_is_counted() {
    let found = kernel(&[
        (LOAD, 3, 0),
        ("LDGSTS.E.BYPASS.128 [R1], [R2.64]", 7, 0),
        ("@P2 LDSM.16.M88.4 R8, [R9]", 1, 0),
        ("NOP", 7, 0),
        (PRODUCT, 7, 0b10),
        (PRODUCT, 7, 0),
    ]);
    let expected = Sass {
        instructions: 6,
        hmma: 2,
        lead: 4,
        span: 2,
        gap: 4,
        ldg: 1,
        ldgsts: 1,
        ldsm: 1,
        weight_scoreboards: 1,
        fences: 1,
        longest_loop_bytes: 7 * 16,
        text_bytes: 12 * 16,
        ..Sass::default()
    };
    assert_eq!(found, expected);
}

/// Softmax overlaps the products that are waited for behind it.
#[test]
fn exponentials_behind_the_last_wait_for_products_are_late() {
    let product = "HGMMA.64x128x16.F32.BF16 R24, R136, gdesc[UR16].tnspB, R24, gsb0";
    let found = kernel(&[
        (product, 7, 0),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x1", 7, 0),
        ("MUFU.EX2 R1, R2", 0, 0),
        ("@P1 MUFU.EX2 R3, R4", 0, 0),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x0", 7, 0),
        ("MUFU.EX2 R5, R6", 0, 0),
    ]);
    assert_eq!((found.hgmma, found.mufu, found.late_mufu), (1, 3, 1));
    let found = kernel(&[(PRODUCT, 7, 0), ("MUFU.EX2 R1, R2", 0, 0)]);
    assert_eq!((found.mufu, found.late_mufu), (1, 0));
}

/// A wait that is repeated behind the kernel's end spans products as well, and is no loop.
#[test]
fn a_branch_back_from_behind_the_end_is_no_loop() {
    let mut text = String::from(".text.kernel:\n");
    text += &line(0, PRODUCT, 7, 0);
    text += ".L_x_1:\n";
    text += &line(0x10, "MOV R1, R2", 7, 0);
    text += ".L_x_2:\n";
    text += &line(0x20, PRODUCT, 7, 0);
    text += &line(0x30, "@P0 BRA `(.L_x_1)", 7, 0);
    text += &line(0x40, PRODUCT, 7, 0);
    text += &line(0x50, "EXIT", 7, 0);
    text += ".L_x_3:\n";
    text += &line(0x60, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R1", 7, 0);
    text += &line(0x70, "@!P0 BRA `(.L_x_3)", 7, 0);
    text += &line(0x80, "BRA `(.L_x_2)", 7, 0);
    let found = summary(&parse(&text).expect("a listing")["kernel"]);
    assert_eq!((found.instructions, found.hmma, found.longest_loop_bytes), (3, 1, 48));
}

/// With two buffers on one scoreboard, a wait for the older one waits for the younger.
#[test]
fn a_wait_for_loads_since_the_last_product_is_exposed() {
    let waits = |middle| kernel(middle).zero_waits;
    // The loads of the next iteration pass behind the product.
    assert_eq!(waits(&[(LOAD, 3, 0), (PRODUCT, 7, 0), ("MOV R1, R2", 7, 0b1000)]), 0);
    assert_eq!(waits(&[(LOAD, 3, 0), (PRODUCT, 7, 0b1000)]), 1);
    // The older buffer has its own scoreboard.
    assert_eq!(waits(&[(LOAD, 3, 0), (PRODUCT, 7, 0b100), (LOAD, 2, 0), (PRODUCT, 7, 0b1000)]), 0);
    // Over the end of the loop.
    assert_eq!(waits(&[(PRODUCT, 7, 0b1000), (LOAD, 3, 0)]), 1);
    // The second wait finds the scoreboard free.
    assert_eq!(waits(&[(LOAD, 3, 0), ("MOV R1, R2", 7, 0b1000), (PRODUCT, 7, 0b1000)]), 1);
    assert_eq!(kernel(&[(LOAD, 3, 0), (LOAD, 4, 0), (PRODUCT, 7, 0)]).weight_scoreboards, 2);
}

/// Waits for copies count groups: in flight stays what the weakest wait leaves.
#[test]
fn a_wait_for_all_copies_is_exposed() {
    const COPY: (&str, u64, u64) = ("LDGSTS.E.BYPASS.128 [R1], [R2.64]", 7, 0);
    let waits = |counts: [&str; 2]| {
        let [first, second] = counts.map(|count| format!("DEPBAR.LE SB0, {count}"));
        let found = kernel(&[COPY, (&first, 7, 0), (PRODUCT, 7, 0), (&second, 7, 0)]);
        (found.zero_waits, found.pending_groups)
    };
    assert_eq!(waits(["0x7", "0x5"]), (0, 5));
    assert_eq!(waits(["0x10", "0x0"]), (1, 0));
    assert_eq!(kernel(&[(PRODUCT, 7, 0)]).pending_groups, 0);
}

/// A lump of instructions between products leaves the tensor cores idle.
#[test]
fn the_longest_gap_between_products_is_found() {
    const OTHER: (&str, u64, u64) = ("IADD3 R1, R2, R3, RZ", 7, 0);
    let found = kernel(&[OTHER, (PRODUCT, 7, 0), OTHER, OTHER, OTHER, (PRODUCT, 7, 0), OTHER]);
    assert_eq!((found.lead, found.span, found.gap), (1, 5, 3));
    assert_eq!(kernel(&[(LOAD, 3, 0)]).span, 0);
}

#[test]
fn a_listing_without_instructions_is_refused() {
    assert!(parse("").is_err());
    assert!(parse(".text.kernel:\n").is_err());
}

#[test]
fn sums_that_no_product_left_are_counted() {
    let broken = |middle: &[&str]| {
        let lines: Vec<_> = middle.iter().map(|&text| (text, 7, 0)).collect();
        kernel(&lines).broken_sums
    };
    let moved = "HMMA.16816.F32.BF16 R108, R16, R96, R104";
    let back = "HMMA.16816.F32.BF16 R104, R16, R96.reuse, R108";
    let first = "HMMA.16816.F32.BF16 R104, R16, R96, RZ";
    let by_wgmma = "HGMMA.64x128x16.F32.BF16 R24, R136, gdesc[UR16].tnspB, R24, gsb0";
    assert_eq!(broken(&[PRODUCT, moved, back, by_wgmma]), 0);
    assert_eq!(broken(&[PRODUCT, first]), 1);
    assert_eq!(broken(&[PRODUCT, "FADD R106, R1, R2", PRODUCT, PRODUCT]), 1);
    assert_eq!(broken(&["LDS.128 R104, [R2]", PRODUCT]), 1);
    assert_eq!(broken(&["LDSM.16.M88.4 R100, [R2]", PRODUCT]), 0);
}
